"""Replays a run of thousands of steps through the allocator; steps that change nothing are replayed once."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.rules import Rules
from planner.events import Mark, Phase, first_unused_block
from planner.job.length_draws import Steps
from planner.long_run.player import OutOfMemoryError, Peaks, Player
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
    """Where the memory ran out; 0 if it never did."""
    out_of_memory_phase: Phase = Phase.LOAD
    replayed: int = 0
    """Steps that were replayed; what the others do is known from these."""
    left_out: int = 0
    """Steps before the last one that were not looked at: replaying them would take too long."""

    @property
    def peak_reserved_bytes(self) -> int:
        return self.growths[-1].reserved_bytes if self.growths else 0

    @property
    def worst_step(self) -> int:
        """The first step with the highest allocated bytes, counted from 1."""
        index = self.allocated_bytes.index(max(self.allocated_bytes))
        is_last = index == len(self.allocated_bytes) - 1
        return index + 1 + (self.left_out if is_last else 0)


_State = int
_Part = tuple[Place | None, int]
"""A stretch by its place and its length; without a place a release of the cache."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a stretch that began in a known state."""

    after: _State
    peaks: Peaks
    cache_releases: int


class Run:
    """A run that goes on stretch by stretch.

    What a stretch does hinges on its length and on the state of the allocator, of which there are few: a stretch that
    began in the same state before is not replayed again. Where the run comes to one that did not, the allocator is
    brought to that state on the shortest way that is known.
    """

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
        self._player = Player(self.allocator, list(traced.standing), first_unused_block(traced.before))
        self._known: dict[_State, dict[_Part, _Outcome]] = defaultdict(dict)
        self._at: _State | None = None
        """Where the run is; None where the age of blocks counts, and nothing is known of other times."""
        self._allocator_at: _State | None = None
        self._peaks = Peaks()

    def take(self, steps: Steps, first_steps: int) -> ReplayedRun:
        """Replays these steps, of which the first are in the trace as they are, until the memory runs out. Of a run
        that would take too long the last step is looked at all the same."""
        found, number = self.found, 1
        try:
            self._begin(steps)
            for number, step in enumerate(steps[first_steps:], first_steps + 1):
                if self._player.played >= MOST_EVENTS and number < len(steps):
                    found.left_out += 1
                else:
                    self._take_step(step, number)
        except OutOfMemoryError as failed:
            found.out_of_memory_phase = failed.phase
            found.out_of_memory_step = number if number > first_steps else len(found.allocated_bytes) + 1
        return found

    def _begin(self, steps: Steps) -> None:
        allocator = self.allocator
        number, phase = 0, Phase.LOAD
        for event in self._traced.before:
            if isinstance(event, Mark):
                if event.iteration > 1 and event.iteration != number:
                    self._end_step()
                number, phase = event.iteration, event.phase
                continue
            reserved = allocator.peak_reserved
            self._player.play_as_it_is(event, phase)
            if allocator.peak_reserved > reserved:
                self._grow(max(number, 1), max(steps[max(number, 1) - 1]), phase)
            self._peaks = self._peaks.higher(Peaks(allocator.allocated, allocator.requested, phase))
        self._end_step()
        self.found.cache_releases = allocator.cache_releases
        self._at = self._allocator_at = self._player.state()

    def _take_step(self, step: tuple[int, ...], number: int) -> None:
        before = self.found.replayed
        replayed = False
        for part in zip(places_of(len(step)), (*step, max(step)), strict=True):
            replayed |= self._take_part(part, number)
        if self._every and number % self._every == 0:
            replayed |= self._take_part((None, 0), number)
        self._end_step()
        self.found.replayed = before + replayed

    def _end_step(self) -> None:
        found, peaks = self.found, self._peaks
        found.allocated_bytes.append(peaks.allocated_bytes)
        found.requested_bytes.append(peaks.requested_bytes)
        found.phases.append(peaks.phase)
        found.replayed += 1
        self._peaks = Peaks()

    def _take_part(self, part: _Part, number: int) -> bool:
        """Whether it had to be replayed."""
        before = self._at
        known = None if before is None else self._known[before].get(part)
        if known is None:
            self._catch_up()
            releases = self.allocator.cache_releases
            peaks = self._replay(part, number)
            self._at = self._allocator_at = self._player.state()
            known_releases = self.allocator.cache_releases - releases
            if before is not None and self._at is not None:
                self._known[before][part] = _Outcome(self._at, peaks, known_releases)
        else:
            peaks, known_releases = known.peaks, known.cache_releases
            self._at = known.after
        self.found.cache_releases += known_releases
        self._peaks = self._peaks.higher(peaks)
        return known is None

    def _catch_up(self) -> None:
        """Brings the allocator to where the run is."""
        if self._at == self._allocator_at:
            return
        assert self._at is not None
        assert self._allocator_at is not None
        for part in self._way(self._allocator_at, self._at):
            self._replay(part, 0)
        self._allocator_at = self._player.state()
        assert self._allocator_at == self._at, "a stretch did something else in the same state"

    def _way(self, start: _State, end: _State) -> list[_Part]:
        """The fewest stretches from one state to another."""
        came_from: dict[_State, tuple[_State, _Part]] = {}
        waiting = deque([start])
        while end not in came_from:
            here = waiting.popleft()
            for part, outcome in self._known[here].items():
                if outcome.after not in came_from:
                    came_from[outcome.after] = (here, part)
                    waiting.append(outcome.after)
        way: list[_Part] = []
        here = end
        while not way or here != start:
            here, part = came_from[here]
            way.append(part)
        return way[::-1]

    def _replay(self, part: _Part, number: int) -> Peaks:
        place, length = part
        if place is None:
            self.allocator.empty_cache()
            return Peaks()
        stretch = self._by_length[place].at(length)
        return self._player.play(stretch, lambda phase: self._grow(number, length, phase))

    def _grow(self, step: int, length: int, phase: Phase) -> None:
        """Of one step the last is kept."""
        growths = self.found.growths
        if growths and growths[-1].step == step:
            growths.pop()
        growths.append(Growth(step, length, phase, self.allocator.peak_reserved))
