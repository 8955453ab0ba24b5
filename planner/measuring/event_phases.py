"""Phases and categories of a run that is known event by event: requested bytes only, as a CPU has no segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.measuring.measured_phases import Phases
from planner.measuring.measurement import Levels, MeasuredPhase

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
