"""Says of a run whose memory grows with every step how fast it grows, and when it is full."""

from __future__ import annotations

from collections.abc import Sequence

from planner.allocator.rules import Rules
from planner.events import Event, Repeat
from planner.long_run.growth import End, Growth, find_end, growth_of
from planner.report.named_moments import NamedMoment
from planner.report.statement import RankClassStatement
from planner.report.style import size


def growth_moments(
    events: Sequence[Event], repeats: Sequence[Repeat], statement: RankClassStatement, rules: Rules
) -> tuple[NamedMoment, ...]:
    """The moment at which the memory is full of what steps keep; none for a run that is steady, as one is of which
    iterations repeat."""
    growth = None if any(each.iterations for each in repeats) else growth_of(events, rules)
    if growth is None:
        return ()
    outside = statement.outside_allocator.total_bytes
    room = max(statement.capacity_bytes - outside, 0)
    end = find_end(events, growth, rules, room)
    return (
        NamedMoment(
            name="kept with every step",
            phase=(end.phase if end else None) or statement.peak.phase,
            iteration=end.step if end else statement.peak.iteration,
            allocated_bytes=statement.peak.allocated_bytes,
            reserved_bytes=statement.peak.reserved_bytes,
            device_bytes=statement.peak.device_bytes,
            sentence=_sentence(growth, end, room),
        ),
    )


def _sentence(growth: Growth, end: End | None, room: int) -> str:
    origin = growth.origin
    maker = " of ".join(each for each in (origin.op, origin.module) if each)
    shape = f" ({' × '.join(map(str, origin.shape))} {origin.dtype})" if origin.shape else ""
    made = f", most of it by {maker}{shape}" if maker else ""
    kept = f"Each step keeps {size(growth.bytes_per_step)} that it never gives up"
    told = f"{kept}{made}, in the last {growth.steps} seen"
    if end is None:
        return f"{told}."
    how = "replayed" if end.exact else "reckoned from what is left"
    return f"{told}: the {size(room)} there are for the allocator are full in step {end.step} ({how})."
