"""Blocks that another stream uses: active until that stream has passed."""

from __future__ import annotations

import pytest

from planner.allocator.replay import replay
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.units import MIB

USED: list[Event] = [Alloc(0, 12 * MIB), Use(0, 7), Free(0)]


@pytest.mark.parametrize(
    "end", [FreeCompleted(0), Synchronize(), EmptyCache()], ids=["passed", "synchronize", "empty_cache"]
)
def test_a_used_block_is_active_but_not_allocated_until_its_use_ends(end: Event) -> None:
    timeline = replay([*USED, end])

    assert list(timeline.allocated_bytes) == [12 * MIB, 12 * MIB, 0, 0]
    assert list(timeline.active_bytes) == [12 * MIB, 12 * MIB, 12 * MIB, 0]
    assert list(timeline.requested_bytes) == [12 * MIB, 12 * MIB, 12 * MIB, 0]


def test_a_use_on_the_blocks_own_stream_means_nothing() -> None:
    timeline = replay([Alloc(0, MIB, stream=7), Use(0, 7), Free(0)])

    assert list(timeline.active_bytes) == [MIB, MIB, 0]


def test_what_has_passed_before_the_block_is_given_up_does_not_hold_it() -> None:
    timeline = replay([Alloc(0, MIB), Use(0, 7), Synchronize(), Free(0)])

    assert timeline.active_bytes[-1] == 0


def test_a_block_with_an_open_use_is_not_handed_out_again() -> None:
    assert replay([*USED, Alloc(1, 12 * MIB)]).peak_reserved_bytes == 24 * MIB
    assert replay([*USED, FreeCompleted(0), Alloc(1, 12 * MIB)]).peak_reserved_bytes == 12 * MIB


def test_a_block_given_up_twice_is_no_program() -> None:
    with pytest.raises(ValueError, match=r"event 2: Free\(block=0\) names a block that is not alive"):
        replay([Alloc(0, 1), Free(0), Free(0)])


def test_a_block_allocated_twice_is_no_program() -> None:
    with pytest.raises(ValueError, match="event 2: block 0 is allocated twice"):
        replay([Alloc(0, 1), Free(0), Alloc(0, 1)])


def test_nothing_asked_for_takes_nothing() -> None:
    timeline = replay([Alloc(0, 0), Use(0, 7), Free(0)])

    assert (timeline.peak_reserved_bytes, timeline.block_bytes[0]) == (0, 0)
