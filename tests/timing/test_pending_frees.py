"""What was given up is free when the GPU has passed it: uses by other streams, and what NCCL's groups keep."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.allocator.replay import replay
from planner.events import (
    Alloc,
    EmptyCache,
    Event,
    Free,
    FreeCompleted,
    Keep,
    Mark,
    Phase,
    Repeat,
    Use,
    write_out_repeats,
)
from planner.step_work import WHOLE_DEVICE, Launch, LaunchKind
from planner.timing.gpu_clock import MOST_AHEAD, Prices
from planner.timing.pending_frees import WATCHDOG_NS, complete_frees

MODEL, SIDE, GROUP = 0, 7, 1
LONG, SHORT = range(2)
US = 1_000
PRICES = Prices([10_000 * US, 5 * US], [7 * US, 7 * US])
FAST, SLOW = Prices([0, 0], [1, 1]), Prices([1 << 50, 1 << 50], [1, 1])
USED = [Alloc(0, 512), Use(0, SIDE), Launch(LaunchKind.KERNEL, SIDE, LONG), Free(0)]


def kernel(what: int, stream: int = MODEL) -> Launch:
    return Launch(LaunchKind.KERNEL, stream, what)


def told(events: list[Event], prices: Prices = PRICES) -> list[Event]:
    """What the allocator is told, without what has nothing to do with the first block."""
    out = complete_frees(events, (), prices).events
    assert not [event for event in out if isinstance(event, Launch | Keep)]
    return [event for event in out if not isinstance(event, Mark)]


def test_a_block_is_free_at_the_first_request_after_the_other_stream_has_passed() -> None:
    busy = [kernel(SHORT)] * 2000  # 14 ms of the host
    assert told([*USED, Alloc(1, 512), *busy, Alloc(2, 512)]) == [
        Alloc(0, 512), Use(0, SIDE), Free(0), Alloc(1, 512), FreeCompleted(0), Alloc(2, 512),
    ]  # fmt: skip


def test_what_the_other_stream_is_given_later_does_not_hold_it() -> None:
    busy = [kernel(LONG, SIDE), *[kernel(SHORT)] * 2000]
    assert FreeCompleted(0) in told([*USED, *busy, Alloc(1, 512)])


def test_a_stream_that_never_computes_has_passed_at_the_next_request() -> None:
    assert told([Alloc(0, 512), Use(0, SIDE), Free(0), Alloc(1, 512)])[3:] == [FreeCompleted(0), Alloc(1, 512)]


def test_of_two_streams_both_have_to_pass() -> None:
    events = [Alloc(0, 512), Use(0, SIDE), Use(0, SIDE + 1), kernel(SHORT, SIDE), kernel(LONG, SIDE + 1), Free(0)]
    assert FreeCompleted(0) not in told([*events, *[kernel(SHORT)] * 2, Alloc(1, 512)])
    assert FreeCompleted(0) in told([*events, *[kernel(SHORT)] * 2000, Alloc(1, 512)])


@pytest.mark.parametrize(
    "wait",
    [
        [Launch(LaunchKind.HOST_WAIT, SIDE, 0)],
        [Launch(LaunchKind.HOST_WAIT, WHOLE_DEVICE, 0)],
        [Launch(LaunchKind.RECORD, SIDE, 3), Launch(LaunchKind.HOST_WAIT_EVENT, 0, 3)],
        [Launch(LaunchKind.COMPILE, 0, 0)],
        [EmptyCache()],
    ],
    ids=["for the stream", "for the device", "for an event", "while it compiles", "to empty the cache"],
)
def test_a_host_that_waits_lets_it_pass(wait: list[Event]) -> None:
    assert FreeCompleted(0) not in told([*USED, Alloc(1, 512)])
    assert FreeCompleted(0) in told([*USED, *wait, Alloc(1, 512)])


def test_a_host_that_waits_for_another_stream_does_not() -> None:
    assert FreeCompleted(0) not in told([*USED, Launch(LaunchKind.HOST_WAIT, MODEL, 0), Alloc(1, 512)])


def test_a_host_cannot_be_further_ahead_than_a_stream_takes_launches() -> None:
    assert FreeCompleted(0) not in told([*USED, *[kernel(LONG, SIDE)] * (MOST_AHEAD - 2), Alloc(1, 512)])
    assert FreeCompleted(0) in told([*USED, *[kernel(LONG, SIDE)] * (MOST_AHEAD + 1), Alloc(1, 512)])


def collective(end: int, blocks: tuple[int, ...] = (), group: int = GROUP) -> list[Event]:
    """One on the side stream that keeps these."""
    issue = Launch(LaunchKind.ISSUE, group, end)
    return [issue, kernel(SHORT, SIDE), Launch(LaunchKind.RECORD, SIDE, end), *(Keep(block, end) for block in blocks)]


LOOKED = [Launch(LaunchKind.HOST_WAIT, SIDE, 0), *[kernel(SHORT)] * (2 * WATCHDOG_NS // (7 * US))]
"""The host lets two looks of the watchdog pass."""


def test_what_a_collective_keeps_is_given_up_where_its_work_is_waited_for() -> None:
    released = Launch(LaunchKind.RELEASE, 0, 1)
    assert told([Alloc(0, 512), *collective(1, (0,)), Free(0), Alloc(1, 512), released]) == [
        Alloc(0, 512), Alloc(1, 512), Free(0),
    ]  # fmt: skip
    assert told([Alloc(0, 512), *collective(1, (0,)), released, Alloc(1, 512), Free(0)])[-1] == Free(0)


def test_else_the_next_collective_of_its_group_gives_up_what_the_watchdog_has_seen() -> None:
    kept = [Alloc(0, 512), *collective(1, (0,)), Free(0)]
    assert Free(0) not in told([*kept, *collective(2)])
    assert Free(0) not in told([*kept, *LOOKED])
    assert Free(0) not in told([*kept, *LOOKED, *collective(2, group=GROUP + 1)])
    assert told([*kept, *LOOKED, Alloc(1, 512), *collective(2)]) == [Alloc(0, 512), Alloc(1, 512), Free(0)]


def test_of_two_collectives_that_keep_a_block_both_have_to_let_go() -> None:
    kept = [Alloc(0, 512), *collective(1, (0,)), *collective(2, (0,)), Free(0)]
    one, other = (Launch(LaunchKind.RELEASE, 0, end) for end in (1, 2))
    assert Free(0) not in told([*kept, one])
    assert Free(0) in told([*kept, one, other])


def iteration(launches: list[Event], *, numbers: count) -> list[Event]:  # type: ignore[type-arg]
    block = next(numbers)
    return [Mark(Phase.FORWARD, 1), Alloc(block, 1 << 20), Use(block, SIDE), *launches, Free(block)]


@pytest.mark.parametrize(
    "launches",
    [
        [kernel(LONG, SIDE), *[kernel(SHORT)] * 3000],
        [kernel(LONG, SIDE), *[kernel(SHORT)] * 20, Launch(LaunchKind.HOST_WAIT, SIDE, 0)],
        [*[kernel(LONG, SIDE)] * 60, *[kernel(SHORT)] * 20],
    ],
    ids=["host behind", "host that waits", "host as far ahead as it can be"],
)
def test_repetitions_are_left_away_once_the_host_is_as_far_ahead_as_before(launches: list[Event]) -> None:
    events = iteration(launches, numbers=count())
    repeat = Repeat(0, len(events), 100, 1)

    told = complete_frees(events, [repeat], PRICES)
    whole = complete_frees(list(write_out_repeats(events, [repeat])), (), PRICES).events

    assert replay(list(write_out_repeats(told.events, told.repeats))) == replay(whole)
    assert len(told.events) < len(whole) / 2


def test_a_host_that_gets_further_ahead_with_every_repetition_leaves_none_away() -> None:
    events = iteration([kernel(LONG, SIDE), *[kernel(SHORT)] * 20], numbers=count())

    told = complete_frees(events, [Repeat(0, len(events), 100, 1)], PRICES)

    assert told.repeats == ()
    assert replay(told.events).active_bytes[-1] > 90 << 20
    assert told.longest_lead_ns > 900_000 * US


STREAMS = st.sampled_from([MODEL, SIDE, SIDE + 1])


@st.composite
def programs(draw: st.DrawFn) -> list[Event]:
    """Up to 60 allocations, uses, frees, launches and waits."""
    events: list[Event] = []
    alive: list[int] = []
    for block in range(draw(st.integers(1, 60))):
        deed = draw(st.integers(0, 5))
        if deed <= 1 or not alive:
            # Of the small pool, whose blocks are split to the last 512 bytes.
            events.append(Alloc(block, draw(st.integers(1, 1 << 20)), draw(STREAMS)))
            alive.append(block)
        elif deed == 2:
            events.append(Use(draw(st.sampled_from(alive)), draw(STREAMS)))
        elif deed == 3:
            events.append(Free(alive.pop(draw(st.integers(0, len(alive) - 1)))))
        elif deed == 4:
            events.append(kernel(draw(st.sampled_from([LONG, SHORT])), draw(STREAMS)))
        else:
            events.append(Launch(LaunchKind.HOST_WAIT, draw(STREAMS), 0))
    return events


def held_until_waited_for(events: list[Event]) -> list[int]:
    """Active bytes after each allocation, if a use passes only where the host waits for its stream."""
    sizes, uses, waiting = dict[int, int](), dict[int, set[int]](), dict[int, set[int]]()
    out = []
    for event in events:
        match event:
            case Alloc(block, size, stream):
                sizes[block], uses[block] = -(-size // 512) * 512, {stream}
                out.append(sum(sizes.values()))
            case Use(block, stream):
                uses[block].add(stream)
            case Free(block):
                own = next(each.stream for each in events if isinstance(each, Alloc) and each.block == block)
                waiting[block] = uses[block] - {own}
            case Launch(LaunchKind.HOST_WAIT, stream):
                waiting = {block: streams - {stream} for block, streams in waiting.items()}
        sizes = {block: size for block, size in sizes.items() if waiting.get(block, {0})}
    return out


@given(events=programs())
@settings(max_examples=200, deadline=None)
def test_a_gpu_without_time_passes_everything_at_once_and_none_later_than_the_host_waits(events: list[Event]) -> None:
    """Both are bounds of what any GPU holds at any moment of the program."""

    def active(prices: Prices) -> list[int]:
        out = complete_frees(events, (), prices).events
        held = replay(out).active_bytes
        return [held[index] for index, event in enumerate(out) if isinstance(event, Alloc)]

    at_once = active_without_uses(events)
    latest = held_until_waited_for(events)

    assert active(FAST) == at_once
    for prices in (PRICES, SLOW):
        assert all(low <= held <= high for low, held, high in zip(at_once, active(prices), latest, strict=True))


def active_without_uses(events: list[Event]) -> list[int]:
    plain = [event for event in events if not isinstance(event, Use | Launch)]
    held = replay(plain).active_bytes
    return [held[index] for index, event in enumerate(plain) if isinstance(event, Alloc)]


@given(events=programs())
@settings(max_examples=100, deadline=None)
def test_every_block_that_waited_is_free_once_and_after_it_was_given_up(events: list[Event]) -> None:
    out = complete_frees([*events, EmptyCache(), Alloc(-1, 1)], (), PRICES).events
    completed = [event.block for event in out if isinstance(event, FreeCompleted)]
    freed = [event.block for event in out if isinstance(event, Free)]

    assert len(completed) == len(set(completed))
    assert set(completed) <= set(freed)
    assert [event for event in out if not isinstance(event, FreeCompleted)] == [
        event for event in [*events, EmptyCache(), Alloc(-1, 1)] if not isinstance(event, Launch)
    ]
