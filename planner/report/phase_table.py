"""What each phase of each iteration needs."""

from __future__ import annotations

from collections.abc import Sequence

from planner.allocator.timeline import Timeline
from planner.events import Event, Phase
from planner.report.lives import phase_spans
from planner.report.statement import PhaseStatement


def state_phases(events: Sequence[Event], timeline: Timeline) -> tuple[PhaseStatement, ...]:
    """One statement per phase and iteration, in the order of their beginnings.

    The micro-batches of an iteration, whose forwards and backwards alternate, are taken together: the highest
    peak of them, the end of the last. What stands when a phase begins is part of its peak.
    """
    merged: dict[tuple[Phase, int], PhaseStatement] = {}
    for stretch in phase_spans(events):
        allocated = timeline.allocated_bytes[stretch.first : stretch.last]
        if not len(allocated):
            continue  # no events at all, or the replay ran out of memory before
        key = stretch.phase, stretch.iteration
        before = merged.get(key)
        merged[key] = PhaseStatement(
            phase=stretch.phase,
            iteration=stretch.iteration,
            peak_allocated_bytes=max(max(allocated), before.peak_allocated_bytes if before else 0),
            peak_reserved_bytes=max(
                max(timeline.reserved_bytes[stretch.first : stretch.last]),
                before.peak_reserved_bytes if before else 0,
            ),
            end_allocated_bytes=allocated[-1],
        )
    return tuple(merged.values())
