"""What a job keeps with every step and never frees: how much, of what, and in which step the memory is full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.long_runs.replayed_run import OutOfMemoryError, Player
from planner.allocator.long_runs.stretches import Stretch, alive_at, pattern_of
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Free, FreeCompleted, Mark, Origin, Phase, Role, Use, first_unused_block

_FIRST = 2
_FEWEST = 3
"""Steps in a row that have to keep something."""
_MOST_EVENTS = 2_000_000
"""That are replayed to find the step in which the memory is full; some five seconds."""
_MOST_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Growth:
    """`bytes_per_step` are the bytes of blocks that a step leaves behind, most of them made by `origin`, and `steps`
    how many steps were seen to do so."""

    bytes_per_step: int
    steps: int
    origin: Origin
    last_step: tuple[int, int]
    """Where the last whole step begins, and where it ends, as indices of events."""
    last_iteration: int
    """Its number."""


@dataclass(frozen=True, slots=True)
class End:
    """The step in which the memory is full; `exact` if every step until then was replayed."""

    step: int
    phase: Phase | None
    exact: bool


def growth_of(events: Sequence[Event], rules: Rules) -> Growth | None:
    """What steps keep: blocks that are born in a step and outlive all that follow. None where one of the last steps
    keeps nothing, or there are too few.

    The first two steps are passed over, in which optimizer state, workspaces and buckets are born; the last one, too:
    what it leaves, the next one may free.
    """
    starts: dict[int, int] = {}
    for index, event in enumerate(events):
        if isinstance(event, Mark) and event.phase is Phase.FORWARD:
            starts.setdefault(event.iteration, index)
    iterations = sorted(starts)
    cuts = [starts[iteration] for iteration in iterations]
    if len(cuts) < _FIRST + _FEWEST + 2:
        return None
    last = alive_at(events, cuts)[cuts[-1]]
    kept = []
    for first, after in pairwise(cuts[_FIRST:-1]):
        sizes: Counter[Origin] = Counter()
        for event in events[first:after]:
            if isinstance(event, Alloc) and event.block in last and event.requested_bytes:
                sizes[event.origin or Origin()] += rules.round_size(event.requested_bytes)
        kept.append(sizes)
    growing = list(takewhile(bool, reversed(kept)))
    if len(growing) < _FEWEST:
        return None
    by_origin = sum(growing, Counter[Origin]())
    average = round(by_origin.total() / len(growing))
    return Growth(average, len(growing), by_origin.most_common(1)[0][0], (cuts[-2], cuts[-1]), iterations[-2])


def find_end(events: Sequence[Event], growth: Growth, rules: Rules, room_bytes: int) -> End | None:
    """The step in which an allocator with so much room is full: by replaying steps like the last one until then, or,
    where that takes too long, by what is left divided by what a step keeps. None if it is full in the trace itself."""
    first, last = growth.last_step
    alive = alive_at(events, (first, last))
    freed_later = {event.block for event in events[first:] if isinstance(event, Free | FreeCompleted | Use | Role)}

    def standing(cut: int) -> tuple[int, ...]:
        """What a step finds of the one before it, without what stays for good."""
        return tuple(block for block in alive[cut] if block in freed_later)

    step = pattern_of(Stretch(tuple(events[first:last]), standing(first), standing(last)))
    player = Player(CachingAllocator(rules, Device(room_bytes)), [], first_unused_block(events))
    try:
        for event in events[:last]:
            player.play_as_it_is(event)
    except OutOfMemoryError:
        return None
    player.standing, number = list(standing(last)), growth.last_iteration
    alike = len(standing(first)) == len(standing(last))
    allocated = player.allocator.allocated
    while alike and player.played < _MOST_EVENTS and number < _MOST_STEPS:
        number += 1
        try:
            player.play(step)
        except OutOfMemoryError as full:
            return End(number, full.phase, exact=True)
    left = room_bytes - max(player.allocator.peak_reserved, allocated)
    return End(number + max(left, 0) // growth.bytes_per_step + 1, None, exact=False)
