"""What the models of a trainer's process hold at the height of each phase: the policy's, a reference's, a reward's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.allocator.timeline import Timeline
from planner.events import Alloc, Category, Event, Free, Role
from planner.report.lives import PhaseSpan, phase_spans

FROZEN = ("reference", "reward")


@dataclass(frozen=True, slots=True)
class HeldInPhase:
    """One stretch: its highest reserved bytes, and block bytes of some holders when most is allocated in it."""

    span: PhaseSpan
    reserved_bytes: int
    allocated_bytes: int
    parameter_bytes: int
    """Of the trainer's model, gathered parameters too."""
    optimizer_bytes: int
    reference_bytes: int
    reward_bytes: int


def held_in_phases(events: Sequence[Event], timeline: Timeline) -> list[HeldInPhase]:
    """Of every stretch that was replayed, in order."""
    spans = [each for each in phase_spans(events) if each.first < len(timeline.allocated_bytes)]
    heights = [_height(each, timeline) for each in spans]
    sums: Counter[str] = Counter()
    holder: dict[int, str] = {}
    found: list[HeldInPhase] = []
    at = 0
    for span, height in zip(spans, heights, strict=True):
        at = _advance(events, at, height + 1, sums, holder, timeline)
        found.append(
            HeldInPhase(
                span=span,
                reserved_bytes=max(timeline.reserved_bytes[span.first : span.last]),
                allocated_bytes=timeline.allocated_bytes[height],
                parameter_bytes=sums["parameter"],
                optimizer_bytes=sums["optimizer"],
                reference_bytes=sums["reference"],
                reward_bytes=sums["reward"],
            )
        )
        at = _advance(events, at, min(span.last, len(timeline.allocated_bytes)), sums, holder, timeline)
    return found


def _height(span: PhaseSpan, timeline: Timeline) -> int:
    allocated = timeline.allocated_bytes[span.first : span.last]
    return span.first + allocated.index(max(allocated))


def _advance(
    events: Sequence[Event], at: int, end: int, sums: Counter[str], holder: dict[int, str], timeline: Timeline
) -> int:
    while at < end or (at < len(events) and at > 0 and isinstance(events[at], Role)):
        event = events[at]
        if isinstance(event, Alloc):
            holder[event.block] = ""
        elif isinstance(event, Role) and event.block in holder:
            size = timeline.block_bytes.get(event.block, 0)
            sums[holder[event.block]] -= size
            holder[event.block] = _holder(event)
            sums[holder[event.block]] += size
        elif isinstance(event, Free) and event.block in holder:
            sums[holder.pop(event.block)] -= timeline.block_bytes.get(event.block, 0)
        at += 1
    return at


def _holder(role: Role) -> str:
    if role.category is Category.OPTIMIZER_STATE:
        return "optimizer"
    if role.category is not Category.PARAMETER:
        return ""
    first = role.name.partition(".")[0]
    return first if first in FROZEN else "parameter"
