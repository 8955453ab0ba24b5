"""Pinned memory, against torch's source (2.13, ATen/core/CachingHostAllocator.h) and sizes that people measured."""

from __future__ import annotations

import pytest

from planner.allocator.host.replay import PinnedMemory, PinnedRules
from planner.errors import AllocatorConfError
from planner.units import GIB, MIB


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        pytest.param(204 * GIB // 10, 32 * GIB, id="sgl-project/sglang#36562: 20.4 GiB took 2**35 bytes"),
        pytest.param(5 * GIB, 8 * GIB, id="LMCache/LMCache#1147: 5.0 took 8"),
        pytest.param(4 * GIB, 4 * GIB, id="LMCache/LMCache#1147: 4.0 took 4"),
        pytest.param(41 * GIB // 10, 8 * GIB, id="LMCache/LMCache#1147: 4.1 took 8"),
        pytest.param(25 * GIB // 10, 4 * GIB, id="sgl-project/sglang#40626: 2.5 took 4"),
        pytest.param(477 * GIB // 10, 64 * GIB, id="sgl-project/sglang#40626: 47.7 took 64"),
        pytest.param(954 * GIB // 10, 128 * GIB, id="sgl-project/sglang#40626: 95.4 took 128"),
        pytest.param(1, 1, id="one byte is a power of two"),
        pytest.param(0, 0, id="nothing"),
    ],
)
def test_a_request_takes_the_next_power_of_two(asked: int, taken: int) -> None:
    assert PinnedRules().block_bytes(asked) == taken


def test_what_is_given_up_is_kept_and_taken_again_by_requests_of_its_size_alone() -> None:
    memory = PinnedMemory(PinnedRules())
    first = memory.take(3 * MIB)
    memory.give_up(first)

    assert (memory.used_bytes, memory.held_bytes) == (0, 4 * MIB)
    memory.take(4 * MIB)
    assert memory.held_bytes == 4 * MIB
    memory.take(MIB)  # never a part of a larger block
    assert (memory.used_bytes, memory.held_bytes) == (5 * MIB, 5 * MIB)


def test_settings_leave_large_requests_as_they_are_and_give_them_back() -> None:
    rounded = PinnedRules.from_conf("expandable_segments:True, pinned_max_round_threshold_mb:64")
    kept = PinnedRules.from_conf("pinned_max_cached_size_mb:64")

    assert [rounded.block_bytes(size * MIB) for size in (48, 65)] == [64 * MIB, 65 * MIB]
    for rules, left in ((rounded, 65 * MIB), (kept, 0)):
        memory = PinnedMemory(rules)
        memory.give_up(memory.take(65 * MIB))
        assert memory.held_bytes == left


def test_a_reserved_segment_is_there_once_anything_is_pinned() -> None:
    memory = PinnedMemory(PinnedRules.from_conf("pinned_reserve_segment_size_mb:256"))

    assert memory.held_bytes == 0
    memory.take(MIB)
    assert memory.held_bytes == 256 * MIB


@pytest.mark.parametrize("value", ["-1", "1.5", "many", ""])
def test_a_setting_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(AllocatorConfError, match=r"pinned_max_cached_size_mb.*not a whole number"):
        PinnedRules.from_conf(f"pinned_max_cached_size_mb:{value}")
