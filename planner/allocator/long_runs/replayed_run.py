"""Replays a run of thousands of steps, composed of traced ones; steps that change nothing are replayed once."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.long_runs.stretches import Deed, Sized
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Mark, Phase, first_unused_block


class OutOfMemoryError(Exception):
    """The memory does not suffice, also after the cache was released."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        super().__init__(f"out of memory in {phase.value}")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest of a stretch; the phase is that of the allocated bytes."""

    allocated_bytes: int = 0
    requested_bytes: int = 0
    phase: Phase = Phase.LOAD

    def higher(self, other: Peaks) -> Peaks:
        """Of both together."""
        first = self if self.allocated_bytes >= other.allocated_bytes else other
        return Peaks(first.allocated_bytes, max(self.requested_bytes, other.requested_bytes), first.phase)


@dataclass(slots=True)
class Player:
    """An allocator and what stands in it: `standing` are the blocks that the next stretch finds, `unused` is a number
    from which on no block has its name."""

    allocator: CachingAllocator
    standing: list[int]
    unused: int
    played: int = 0
    """Events so far, without those that were played as they are."""
    _addresses: dict[int, int] = field(default_factory=dict)

    def play_as_it_is(self, event: Event, phase: Phase = Phase.LOAD) -> None:
        """One event of a trace, its block under its own name. Raises OutOfMemoryError, in this phase."""
        if isinstance(event, Alloc):
            block = self.allocator.malloc(event.block, event.requested_bytes, event.stream, event.pool)
            if block is None:
                raise OutOfMemoryError(phase)
            self._addresses[event.block] = block.address
        else:
            self.allocator.take(event)

    def play(self, stretch: Sized, grew: Callable[[Phase], None] = lambda _: None) -> Peaks:
        """One stretch; `grew` is told the phase whenever more is reserved than ever before. Raises OutOfMemoryError.

        Millions of events pass here.
        """
        allocator, table, made = self.allocator, self.standing[:], len(self.standing)
        malloc, free, sizes, unused = allocator.malloc, allocator.free, stretch.sizes, self.unused
        top, at, requested, reserved = allocator.allocated, -1, allocator.requested, allocator.peak_reserved
        for index, (deed, block, stream, pool) in enumerate(stretch.pattern.steps):
            if deed == Deed.ALLOC:
                got = malloc(unused, sizes[len(table) - made], stream, pool)
                if got is None:
                    raise OutOfMemoryError(stretch.phase_at(index))
                table.append(unused)
                self._addresses[unused] = got.address
                unused += 1
                if allocator.allocated > top:
                    top, at = allocator.allocated, index
                if allocator.requested > requested:
                    requested = allocator.requested
                if allocator.peak_reserved > reserved:
                    reserved = allocator.peak_reserved
                    grew(stretch.phase_at(index))
            elif deed == Deed.FREE:
                free(table[block] if block >= 0 else -1 - block)
            elif deed == Deed.USE:
                allocator.use(table[block] if block >= 0 else -1 - block, stream)
            elif deed == Deed.COMPLETE:
                allocator.complete_free(table[block] if block >= 0 else -1 - block)
            elif deed == Deed.SYNCHRONIZE:
                allocator.synchronize()
            else:
                allocator.empty_cache()
        self.unused, self.played = unused, self.played + len(stretch.pattern.steps)
        self.standing = [table[block] if block >= 0 else -1 - block for block in stretch.pattern.left]
        return Peaks(top, requested, stretch.phase_at(max(at, 0)))

    def state(self) -> int | None:
        """All that decides what comes of further stretches, as a number; None where the age of blocks counts."""
        state = self.allocator.state()
        if state is None:
            return None
        blocks, *others = state
        assert isinstance(blocks, list)
        where = tuple(self._addresses.get(block, -1) for block in self.standing)
        self._addresses = {block: self._addresses[block] for block in self.standing if block in self._addresses}
        return hash((tuple(blocks), tuple(others), where))


MOST_EVENTS = 4_000_000
"""That are replayed of one run: some ten seconds."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A step in which more was reserved than ever before."""

    step: int
    phase: Phase
    reserved_bytes: int


@dataclass(slots=True)
class ReplayedRun:
    """What came of a run; one entry of the arrays for each step, in order."""

    allocated_bytes: array[int] = field(default_factory=lambda: array("q"))
    requested_bytes: array[int] = field(default_factory=lambda: array("q"))
    """Peaks of the step."""
    phases: list[Phase] = field(default_factory=list)
    """Of the allocated peak of the step."""
    growths: list[Growth] = field(default_factory=list)
    cache_releases: int = 0
    out_of_memory_step: int = 0
    """Where the memory ran out; 0 if it never did."""
    out_of_memory_phase: Phase = Phase.LOAD
    replayed: int = 0
    """Steps that were replayed; what the others do is known from these."""
    left_out: int = 0
    """Steps before the last one that were not looked at: replaying them would take too long."""

    @property
    def peak_reserved_bytes(self) -> int:
        return self.growths[-1].reserved_bytes if self.growths else 0


_State = int
Part = tuple[Any, ...]
"""A stretch, by its place and what its sizes depend on."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a stretch that began in a known state."""

    after: _State | None
    peaks: Peaks
    cache_releases: int


@dataclass(frozen=True, slots=True)
class PartedRun:
    """The events `before` the steps that are composed, the blocks that the first of these finds, and the parts of each,
    which `stretch_at` makes."""

    before: Sequence[Event]
    standing: Sequence[int]
    steps: Sequence[Sequence[Part]]
    stretch_at: Callable[[Part], Sized]
    off: float = 0.0
    """By how much the bytes of a step may be off, relative."""

    def replay(
        self, rules: Rules, capacity_bytes: int | None = None, *, device_bytes: int | None = None
    ) -> ReplayedRun:
        """The whole run through the allocator, until the memory runs out; the arguments are those of
        `planner.allocator.replay`. Of a run that would take too long the last step is looked at all the same."""
        return _Replay(self, CachingAllocator(rules, Device(capacity_bytes), device_bytes)).take()


class _Replay:
    """A run that goes on stretch by stretch.

    What a stretch does hinges on its sizes and on the state of the allocator, of which there are few: a stretch that
    began in the same state before is not replayed again. Where the run comes to one that did not, the allocator is
    brought to that state on the shortest way that is known.
    """

    def __init__(self, parted: PartedRun, allocator: CachingAllocator) -> None:
        self._parted, self.allocator = parted, allocator
        self.run = ReplayedRun()
        self._player = Player(allocator, list(parted.standing), first_unused_block(parted.before))
        self._known: dict[_State, dict[Part, _Outcome]] = defaultdict(dict)
        self._at: _State | None = None
        """Where the run is; None where the age of blocks counts, and nothing is known of other times."""
        self._allocator_at: _State | None = None
        self._peaks = Peaks()

    def take(self) -> ReplayedRun:
        run, steps = self.run, self._parted.steps
        try:
            self._begin()
            for left, step in zip(range(len(steps), 0, -1), steps, strict=True):
                if self._player.played >= MOST_EVENTS and left > 1:
                    run.left_out += 1
                    continue
                number = len(run.allocated_bytes) + run.left_out + 1
                replayed = [self._take_part(part, number) for part in step]
                run.replayed += any(replayed)
                self._end_step()
        except OutOfMemoryError as failed:
            run.out_of_memory_phase = failed.phase
            run.out_of_memory_step = len(run.allocated_bytes) + run.left_out + 1
        return run

    def _begin(self) -> None:
        allocator = self.allocator
        number, phase = 0, Phase.LOAD
        for event in self._parted.before:
            if isinstance(event, Mark):
                if event.iteration > 1 and event.iteration > number:
                    self._end_step()
                    self.run.replayed += 1
                number, phase = max(event.iteration, number), event.phase
                continue
            reserved = allocator.peak_reserved
            self._player.play_as_it_is(event, phase)
            if allocator.peak_reserved > reserved:
                self._grow(max(number, 1), phase)
            self._peaks = self._peaks.higher(Peaks(allocator.allocated, allocator.requested, phase))
        self._end_step()
        self.run.replayed += 1
        self.run.cache_releases = allocator.cache_releases
        self._at = self._allocator_at = self._player.state()

    def _end_step(self) -> None:
        run, peaks = self.run, self._peaks
        run.allocated_bytes.append(peaks.allocated_bytes)
        run.requested_bytes.append(peaks.requested_bytes)
        run.phases.append(peaks.phase)
        self._peaks = Peaks()

    def _take_part(self, part: Part, number: int) -> bool:
        """Whether it had to be replayed."""
        before = self._at
        outcome = None if before is None else self._known[before].get(part)
        is_new = outcome is None
        if outcome is None:
            self._catch_up()
            releases = self.allocator.cache_releases
            peaks = self._replay(part, number)
            self._allocator_at = self._player.state()
            outcome = _Outcome(self._allocator_at, peaks, self.allocator.cache_releases - releases)
            if before is not None and outcome.after is not None:
                self._known[before][part] = outcome
        self._at = outcome.after
        self.run.cache_releases += outcome.cache_releases
        self._peaks = self._peaks.higher(outcome.peaks)
        return is_new

    def _catch_up(self) -> None:
        """Brings the allocator to where the run is, by the fewest stretches from one state to the other."""
        start, end = self._allocator_at, self._at
        if start == end:
            return
        assert start is not None
        assert end is not None
        came_from: dict[_State, tuple[_State, Part]] = {}
        waiting = deque([start])
        while end not in came_from:
            here = waiting.popleft()
            for part, outcome in self._known[here].items():
                if outcome.after is not None and outcome.after not in came_from:
                    came_from[outcome.after] = (here, part)
                    waiting.append(outcome.after)
        way: list[Part] = []
        here = end
        while not way or here != start:
            here, part = came_from[here]
            way.append(part)
        for part in reversed(way):
            self._replay(part, 0)
        self._allocator_at = self._player.state()
        assert self._allocator_at == end, "a stretch did something else in the same state"

    def _replay(self, part: Part, number: int) -> Peaks:
        return self._player.play(self._parted.stretch_at(part), lambda phase: self._grow(number, phase))

    def _grow(self, step: int, phase: Phase) -> None:
        """Of one step the last is kept."""
        growths = self.run.growths
        if growths and growths[-1].step == step:
            growths.pop()
        growths.append(Growth(step, phase, self.allocator.peak_reserved))
