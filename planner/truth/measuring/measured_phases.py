"""Gathers what is measured from mark to mark, or event by event, into one statement per phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.truth.measuring.measurement_lines import Levels, MeasuredPhase


class Phases:
    """The phases so far, in the order of their beginnings; micro-batches of an iteration are taken together."""

    def __init__(self) -> None:
        self._found: dict[tuple[Phase, int], MeasuredPhase] = {}

    def add(self, phase: Phase, iteration: int, peak: Levels, end: Levels, device_bytes: int = 0) -> None:
        """A stretch of this phase has ended."""
        before = self._found.get((phase, iteration))
        if before is not None:
            peak, device_bytes = before.peak.highest(peak), max(before.device_bytes, device_bytes)
        measured = MeasuredPhase(phase=phase, iteration=iteration, peak=peak, end=end, device_bytes=device_bytes)
        self._found[(phase, iteration)] = measured

    def all(self) -> tuple[MeasuredPhase, ...]:
        return tuple(replace(each) for each in self._found.values())


HOST_ONLY = (".step",)
"""State that optimizers keep on the host whatever the device is."""


def phases_of(events: Sequence[Event]) -> tuple[MeasuredPhase, ...]:
    """Requested bytes by phase and iteration; what comes before the first mark belongs to the loading."""
    phases, sizes = Phases(), {}
    now = peak = 0
    mark = Mark(Phase.LOAD, 0)
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.requested_bytes
            now += event.requested_bytes
            peak = max(peak, now)
        elif isinstance(event, Free):
            now -= sizes[event.block]
        elif isinstance(event, Mark):
            phases.add(mark.phase, mark.iteration, Levels(requested_bytes=peak), Levels(requested_bytes=now))
            mark, peak = event, now
    phases.add(mark.phase, mark.iteration, Levels(requested_bytes=peak), Levels(requested_bytes=now))
    return phases.all()


def most_by_category(events: Sequence[Event]) -> dict[str, int]:
    """The most bytes that each category ever held at a time, of blocks that carry a role."""
    sizes: dict[int, int] = {}
    category: dict[int, Category] = {}
    now: Counter[Category] = Counter()
    most: dict[str, int] = {}
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.requested_bytes
        elif isinstance(event, Free):
            if event.block in category:
                now[category.pop(event.block)] -= sizes[event.block]
        elif isinstance(event, Role) and not event.name.endswith(HOST_ONLY):
            if event.block in category:
                now[category[event.block]] -= sizes[event.block]
            category[event.block] = event.category
            now[event.category] += sizes[event.block]
            most[event.category.value] = max(most.get(event.category.value, 0), now[event.category])
    return dict(sorted(most.items()))
