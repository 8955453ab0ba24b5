"""Where the memory runs out, with the figures that torch prints."""

from __future__ import annotations

from planner.allocator.replay import Replay, replay
from planner.allocator.timeline import OutOfMemory
from planner.events import Alloc, Event, Free
from planner.units import GIB, MIB


def test_it_says_which_event_failed_and_how_much_there_was() -> None:
    events = [Alloc(10, 600 * MIB), Alloc(11, 2 * MIB), Alloc(12, 500 * MIB), Alloc(13, 1)]

    timeline = replay(events, capacity_bytes=GIB)

    assert timeline.out_of_memory == OutOfMemory(
        event_index=2,
        block=12,
        requested_bytes=500 * MIB,
        allocated_bytes=602 * MIB,
        reserved_bytes=620 * MIB,
        capacity_bytes=GIB,
        tried_bytes=500 * MIB,
        free_bytes=404 * MIB,
    )
    assert list(timeline.allocated_bytes) == [600 * MIB, 602 * MIB, 602 * MIB]


def test_it_speaks_as_torch_does() -> None:
    timeline = replay([Alloc(0, 600 * MIB), Alloc(1, 2 * MIB), Alloc(2, 501 * MIB)], capacity_bytes=GIB)

    assert timeline.out_of_memory is not None
    assert timeline.out_of_memory.message() == (
        "CUDA out of memory. Tried to allocate 502.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of which "
        "404.00 MiB is free. Of the allocated memory 602.00 MiB is allocated by PyTorch, "
        "and 18.00 MiB is reserved by PyTorch but unallocated."
    )


def test_cached_segments_are_released_before_it_gives_up() -> None:
    events: list[Event] = [Alloc(0, 600 * MIB), Free(0), Alloc(1, 700 * MIB)]

    timeline = replay(events, capacity_bytes=GIB)

    assert timeline.out_of_memory is None
    assert timeline.cache_releases == 1
    assert timeline.peak_reserved_bytes == 700 * MIB


def test_a_segment_with_one_used_block_cannot_be_released() -> None:
    events: list[Event] = [Alloc(0, 600 * MIB), Free(0), Alloc(1, 2 * MIB), Alloc(2, 599 * MIB)]

    timeline = replay(events, capacity_bytes=GIB)

    assert timeline.out_of_memory is not None
    assert timeline.out_of_memory.reserved_bytes == 600 * MIB
    assert timeline.cache_releases == 0


def test_expandable_segments_find_room_where_whole_segments_do_not() -> None:
    from planner.allocator.rules import Rules

    events: list[Event] = [Alloc(0, 400 * MIB), Alloc(1, 600 * MIB), Free(0), Free(1), Alloc(2, 2 * MIB)]
    events += [Alloc(3, 900 * MIB)]

    assert replay(events, capacity_bytes=GIB).out_of_memory is not None
    assert replay(events, Rules(expandable_segments=True), GIB).out_of_memory is None


def test_nothing_is_replayed_after_the_memory_ran_out() -> None:
    run = Replay(capacity_bytes=GIB)

    assert run.feed([Alloc(0, MIB)]) is True
    assert run.feed([Alloc(1, 2 * GIB), Alloc(2, MIB)]) is False
    assert run.feed([Alloc(3, MIB)]) is False
    assert len(run.timeline().allocated_bytes) == 2
