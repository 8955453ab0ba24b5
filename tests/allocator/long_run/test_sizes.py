"""Sizes at lengths that nobody traced follow from those at other lengths, or are said not to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.allocator.long_runs.stretches import Between, rule_of

LENGTHS = (7, 100, 263, 517, 801, 1024)


def up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


@pytest.mark.parametrize(
    "size",
    [
        lambda length: 4096 + 0 * length,
        lambda length: 256 * length,
        lambda length: 12 + 4 * length,
        lambda length: 8 * length * length,
        lambda length: 2 * length * length + 4 * length + 512,
        lambda length: 64 * up(length, 32),
        lambda length: 4 * up(length, 128) + 1024,
    ],
)
def test_lines_parabolas_and_padded_lengths_are_found_exactly(size: Callable[[int], int]) -> None:
    rule = rule_of(LENGTHS, [size(length) for length in LENGTHS])

    assert rule is not None
    assert [rule.at(length) for length in range(1, 1025)] == [size(length) for length in range(1, 1025)]


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 2, 3, 5, 8, 13),
        [length**3 for length in LENGTHS],
        [length * up(length, 8) + up(length, 128) for length in LENGTHS],
        (512, 512, 512, 512, 512, 1024),
    ],
)
def test_what_no_traced_length_confirms_is_no_rule(sizes: list[int]) -> None:
    assert rule_of(LENGTHS, sizes) is None


def test_three_points_decide_a_parabola_and_confirm_none() -> None:
    lengths = (10, 20, 30)
    assert rule_of(lengths, [length * length for length in lengths]) is None


def test_between_known_lengths_sizes_lie_on_lines_and_outside_of_them_they_stay() -> None:
    found = Between(LENGTHS, [1000 * length + (length % 7) for length in LENGTHS])
    assert found.at(263) == 1000 * 263 + 263 % 7
    assert found.at(400) == pytest.approx(1000 * 400, rel=1e-3)
    assert [found.at(1), found.at(5000)] == [7000, 1024_000 + 1024 % 7]
