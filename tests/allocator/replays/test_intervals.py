"""Intervals are sets of addresses, whatever is put in and taken out."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.allocator.recording import Intervals

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), max_size=12)


@given(changes)
@settings(deadline=None)
def test_they_hold_what_a_set_would(changes: list[tuple[bool, int, int]]) -> None:
    found, expected = Intervals(), set[int]()
    for grows, start, end in changes:
        (found.add if grows else found.remove)(start, end)
        (expected.update if grows else expected.difference_update)(range(start, end))

    stretches = found.stretches
    assert {address for start, end in stretches for address in range(start, end)} == expected
    assert all(start < end for start, end in stretches)
    assert all(before[1] < after[0] for before, after in pairwise(stretches))
    assert bool(found) == bool(expected)


def test_their_size_costs_nothing() -> None:
    found = Intervals()
    found.add(0, 2**60)
    found.remove(2**40, 2**50)

    assert found.stretches == ((0, 2**40), (2**50, 2**60))
