"""Replays a run of thousands of steps through the allocator; steps that change nothing are replayed once."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Mark, Phase, Synchronize, Use, first_unused_block
from planner.job.length_draws import Steps
from planner.long_run.patterns import Deed, Sized
from planner.long_run.sizes import ByLength
from planner.long_run.stretches import Place, TracedRun, places_of

MOST_EVENTS = 4_000_000
"""That are replayed of one run: some ten seconds."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A step in which more was reserved than ever before. `length` is that of its longest batch."""

    step: int
    length: int
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
    """Where the memory ran out, at a length and in a phase; 0 if it never did."""
    out_of_memory_phase: Phase = Phase.LOAD
    replayed: int = 0
    """Steps that were replayed; what the others do is known from these."""

    @property
    def peak_reserved_bytes(self) -> int:
        return self.growths[-1].reserved_bytes if self.growths else 0

    @property
    def worst_step(self) -> int:
        """The first step with the highest allocated bytes, counted from 1."""
        return self.allocated_bytes.index(max(self.allocated_bytes)) + 1


class OutOfMemoryError(Exception):
    """The memory does not suffice, also after the cache was released."""


class Run:
    """A run that goes on step by step."""

    def __init__(
        self,
        traced: TracedRun,
        by_length: Mapping[Place, ByLength],
        rules: Rules,
        capacity_bytes: int | None = None,
        *,
        device_bytes: int | None = None,
        empty_cache_every: int = 0,
    ) -> None:
        self.allocator = CachingAllocator(rules, Device(capacity_bytes), device_bytes)
        self.found = ReplayedRun()
        self._traced, self._by_length, self._every = traced, by_length, empty_cache_every
        self._unused = first_unused_block(traced.before)
        self._standing = list(traced.standing)
        self._addresses: dict[int, int] = {}
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, int, Phase]] = {}
        self._state: int | None = None
        self._events = 0
        self._peaks = (0, 0, Phase.LOAD)

    def take(self, steps: Steps, first_steps: int) -> ReplayedRun:
        """Replays these steps, of which the first are in the trace as they are, until the memory runs out."""
        try:
            self._begin(steps)
            for step in steps[first_steps:]:
                self._take_step(step)
        except OutOfMemoryError:
            self.found.out_of_memory_step = len(self.found.allocated_bytes) + 1
        self.found.cache_releases = self.allocator.cache_releases
        return self.found

    def has_room(self) -> bool:
        """Whether more may be replayed."""
        return self._events < MOST_EVENTS

    def _begin(self, steps: Steps) -> None:
        allocator = self.allocator
        number, phase, self._peaks = 0, Phase.LOAD, (0, 0, Phase.LOAD)
        for event in self._traced.before:
            if isinstance(event, Mark):
                if event.iteration > 1 and event.iteration != number:
                    self._end_step()
                number, phase = event.iteration, event.phase
                self.found.out_of_memory_phase = phase
                continue
            reserved = allocator.peak_reserved
            self._ask(event)
            if allocator.peak_reserved > reserved:
                self._grow(max(number, 1), max(steps[max(number, 1) - 1]), phase)
            if allocator.allocated > self._peaks[0]:
                self._peaks = (allocator.allocated, max(self._peaks[1], allocator.requested), phase)
        self._end_step()

    def _ask(self, event: Event) -> None:
        allocator = self.allocator
        match event:
            case Alloc():
                block = allocator.malloc(event.block, event.requested_bytes, event.stream, event.pool)
                if block is None:
                    raise OutOfMemoryError
                self._addresses[event.block] = block.address
            case Free():
                allocator.free(event.block)
            case Use():
                allocator.use(event.block, event.stream)
            case FreeCompleted():
                allocator.complete_free(event.block)
            case Synchronize():
                allocator.synchronize()
            case EmptyCache():
                allocator.empty_cache()
            case _:
                pass

    def _end_step(self) -> None:
        allocated, requested, phase = self._peaks
        self.found.allocated_bytes.append(allocated)
        self.found.requested_bytes.append(requested)
        self.found.phases.append(phase)
        self.found.replayed += 1
        self._peaks = (0, 0, phase)

    def _take_step(self, step: tuple[int, ...]) -> None:
        found, number = self.found, len(self.found.allocated_bytes) + 1
        empties = bool(self._every) and number % self._every == 0
        key = None if self._state is None else (self._state, (*step, int(empties)))
        known = self._known.get(key) if key is not None else None
        if known is not None:
            found.allocated_bytes.append(known[0])
            found.requested_bytes.append(known[1])
            found.phases.append(known[2])
            return
        for place, length in zip(places_of(len(step)), (*step, max(step)), strict=True):
            self._take_stretch(self._by_length[place].at(length), number, length)
        if empties:
            self.allocator.empty_cache()
        peaks, before = self._peaks, self._state
        self._end_step()
        self._state = self._look()
        if key is not None and self._state == before:
            self._known[key] = peaks

    def _look(self) -> int | None:
        """The state after a step, as a number; None where the age of blocks counts."""
        state = self.allocator.state()
        if state is None:
            return None
        blocks, *others = state
        assert isinstance(blocks, list)
        where = tuple(self._addresses.get(each, -1) for each in self._standing)
        self._addresses = {each: self._addresses[each] for each in self._standing if each in self._addresses}
        return hash((tuple(blocks), tuple(others), where))

    def _take_stretch(self, stretch: Sized, step: int, length: int) -> None:
        """The heart of it: millions of events pass here."""
        allocator, table, made = self.allocator, self._standing[:], len(self._standing)
        malloc, free, sizes, unused = allocator.malloc, allocator.free, stretch.sizes, self._unused
        allocated, requested, phase = self._peaks
        reserved = allocator.peak_reserved
        top, at = allocated, -1
        for index, (deed, block, stream, pool) in enumerate(stretch.pattern.steps):
            if deed == Deed.ALLOC:
                name = unused
                unused += 1
                got = malloc(name, sizes[len(table) - made], stream, pool)
                if got is None:
                    self.found.out_of_memory_phase = stretch.phase_at(index) or phase
                    raise OutOfMemoryError
                table.append(name)
                self._addresses[name] = got.address
                if allocator.allocated > top:
                    top, at = allocator.allocated, index
                if allocator.requested > requested:
                    requested = allocator.requested
                if allocator.peak_reserved > reserved:
                    reserved = allocator.peak_reserved
                    self._grow(step, length, stretch.phase_at(index) or phase)
            elif deed == Deed.FREE:
                free(table[block] if block >= 0 else -1 - block)
            else:
                self._rarer(deed, table[block] if block >= 0 else -1 - block, stream)
        self._unused, self._events = unused, self._events + len(stretch.pattern.steps)
        self._standing = [table[each] if each >= 0 else -1 - each for each in stretch.pattern.left]
        self._peaks = (top, requested, phase if at < 0 else stretch.phase_at(at) or phase)

    def _rarer(self, deed: Deed, block: int, stream: int) -> None:
        if deed == Deed.USE:
            self.allocator.use(block, stream)
        elif deed == Deed.COMPLETE:
            self.allocator.complete_free(block)
        elif deed == Deed.SYNCHRONIZE:
            self.allocator.synchronize()
        else:
            self.allocator.empty_cache()

    def _grow(self, step: int, length: int, phase: Phase) -> None:
        """Of one step the last is kept."""
        growths = self.found.growths
        if growths and growths[-1].step == step:
            growths.pop()
        growths.append(Growth(step, length, phase, self.allocator.peak_reserved))
