"""What holds for every program: blocks tile their segments, sums agree, everything can be given back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.allocator.blocks import ADDRESS_BITS, Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.replay import Replay, replay
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.units import MIB

CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
)
SIZES = st.one_of(
    st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(MIB, 12 * MIB), st.integers(10 * MIB, 90 * MIB)
)


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Allocations and frees on two streams, with uses across them, waiting and emptying of the cache."""
    events: list[Event] = []
    live: list[int] = []
    names = 0
    for choice in draw(st.lists(st.integers(0, 11), max_size=80)):
        if choice <= 4 or not live:
            events.append(Alloc(names, draw(SIZES), draw(st.integers(0, 1))))
            live.append(names)
            names += 1
        elif choice <= 8:
            events.append(Free(live.pop(draw(st.integers(0, len(live) - 1)))))
        elif choice == 9:
            events.append(Use(draw(st.sampled_from(live)), draw(st.integers(0, 2))))
        else:
            events.append((Synchronize(), EmptyCache())[choice - 10])
    return events


@st.composite
def programs_with_pools(draw: st.DrawFn) -> list[Event]:
    """The same, with some allocations in the private pools of two CUDA graphs."""
    return [
        replace(event, pool=draw(st.integers(0, 2))) if isinstance(event, Alloc) else event
        for event in draw(programs())
    ]


def check_tiling(allocator: CachingAllocator) -> None:
    """Blocks neither overlap nor leave gaps, no two free neighbours are apart, and the sums agree."""
    blocks = list(allocator.blocks())
    for left, right in pairwise(blocks):
        if left.segment is right.segment:
            assert left.address + left.size == right.address
            assert not (left.free and right.free)
            assert left.mapped or right.mapped
        else:
            assert left.address + left.size <= right.address
    for segment in {id(block.segment): block.segment for block in blocks}.values():
        inside = [block for block in blocks if block.segment is segment]
        assert inside[0].address == segment.address
        assert sum(block.size for block in inside) == segment.size
        assert sum(block.size for block in inside if block.mapped) == segment.mapped_bytes
    assert sum(block.size for block in blocks if block.mapped) == allocator.reserved == allocator.device.taken_bytes
    assert sum(block.size for block in blocks if block.mapped and not block.free) == allocator.active
    assert len({id(block.segment) for block in blocks}) == allocator.segments
    assert all(key_of(block.size, block.address) in block.pool.keys for block in blocks if block.free)


def key_of(size: int, address: int) -> int:
    return size << ADDRESS_BITS | address


@pytest.mark.parametrize("conf", CONFS)
@given(events=programs_with_pools())
@settings(max_examples=60, deadline=None)
def test_blocks_tile_their_segments_after_every_event(conf: str, events: list[Event]) -> None:
    run = Replay(Rules.from_conf(conf), 400 * MIB)
    for event in events:
        if not run.feed([event]):
            break
        check_tiling(run.allocator)


@pytest.mark.parametrize("conf", CONFS)
@given(events=programs())
@settings(max_examples=40, deadline=None)
def test_reserved_holds_active_holds_allocated_and_requested(conf: str, events: list[Event]) -> None:
    timeline = replay(events, Rules.from_conf(conf))

    for index in range(len(events)):
        assert timeline.reserved_bytes[index] >= timeline.active_bytes[index] >= timeline.allocated_bytes[index] >= 0
        assert timeline.active_bytes[index] >= timeline.requested_bytes[index]
        assert timeline.reserved_bytes[index] >= timeline.active_bytes[index]


@pytest.mark.parametrize("conf", CONFS)
@given(events=programs())
@settings(max_examples=40, deadline=None)
def test_after_freeing_everything_and_emptying_the_cache_nothing_is_left(conf: str, events: list[Event]) -> None:
    freed = {event.block for event in events if isinstance(event, Free)}
    left = [event.block for event in events if isinstance(event, Alloc) and event.block not in freed]

    run = Replay(Rules.from_conf(conf))
    run.feed([*events, *map(Free, left), EmptyCache()])
    timeline = run.timeline()

    assert timeline.requested_bytes[-1] == timeline.allocated_bytes[-1] == timeline.active_bytes[-1] == 0
    assert (timeline.reserved_bytes[-1], run.allocator.segments) == (0, 0)


@given(events=programs(), cut=st.integers(0, 80))
@settings(max_examples=40, deadline=None)
def test_a_replay_fed_in_pieces_is_the_same(events: list[Event], cut: int) -> None:
    run = Replay()
    run.feed(events[:cut])
    run.feed(events[cut:])

    assert run.timeline() == replay(events)


@given(events=programs())
@settings(max_examples=40, deadline=None)
def test_uses_that_pass_at_once_never_need_more_active_memory(events: list[Event]) -> None:
    late, at_once = replay(events), replay([event for event in events if not isinstance(event, Use)])

    assert max(late.active_bytes, default=0) >= max(at_once.active_bytes, default=0)
    assert at_once.active_bytes == at_once.allocated_bytes


@given(size=SIZES)
def test_a_block_is_at_least_what_was_asked_for_and_a_multiple_of_512(size: int) -> None:
    allocator = CachingAllocator(Rules(), Device())

    block = allocator.malloc(0, size)

    assert block is not None
    assert block.size >= size
    assert block.size % 512 == 0
    assert block.size - size <= MIB + 511


@given(size=st.integers(1, 1 << 36), divisions=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_rounding_keeps_within_one_step_and_is_stable(size: int, divisions: int) -> None:
    rules = Rules.from_conf(f"roundup_power2_divisions:{divisions}")

    rounded = rules.round_size(size)

    assert size <= rounded <= max(size + 511, size + (1 << (size.bit_length() - 1)) // divisions)
    assert rules.round_size(rounded) == rounded


@given(events=programs())
@settings(max_examples=30, deadline=None)
def test_what_passed_block_by_block_equals_a_synchronization(events: list[Event]) -> None:
    events = [Alloc(-1, 1), *events]
    names = [event.block for event in events if isinstance(event, Alloc)]

    one_by_one = replay([*events, *map(FreeCompleted, names)])
    at_once = replay([*events, Synchronize()])

    assert one_by_one.active_bytes[-1] == at_once.active_bytes[-1] == at_once.allocated_bytes[-1]


@pytest.mark.parametrize("conf", CONFS)
@given(events=programs_with_pools())
@settings(max_examples=30, deadline=None)
def test_a_segment_is_of_one_private_pool_which_keeps_it(conf: str, events: list[Event]) -> None:
    """What is in one is never handed out elsewhere, and an emptied cache leaves it there."""
    run = Replay(Rules.from_conf(conf))
    kept = 0
    for event in [*events, EmptyCache()]:
        run.feed([event])
        blocks = list(run.allocator.blocks())
        of_segments: dict[int, set[int]] = {}
        for block in blocks:
            of_segments.setdefault(block.segment.address, set()).add(block.pool.private)
        assert all(len(pools) == 1 for pools in of_segments.values())
        private = sum(block.size for block in blocks if block.mapped and block.pool.private)
        assert private >= kept
        kept = private


@given(events=programs())
@settings(max_examples=30, deadline=None)
def test_a_program_in_a_private_pool_takes_what_it_takes_elsewhere(events: list[Event]) -> None:
    """Only the cache is not emptied."""
    events = [event for event in events if not isinstance(event, EmptyCache)]
    inside = [replace(event, pool=1) if isinstance(event, Alloc) else event for event in events]

    assert replay(inside) == replay(events)
