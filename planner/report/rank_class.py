"""The statement about one rank class, from its events and their replays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.report.attribution import attribute
from planner.report.phase_table import state_phases
from planner.report.statement import OutsideAllocator, Peak, RankClassStatement
from planner.report.verdict import decide


def state_rank_class(
    *,
    representative: int,
    ranks: str,
    coordinates: Mapping[str, int],
    events: Sequence[Event],
    unlimited: Timeline,
    capped: Timeline,
    outside: OutsideAllocator,
    interval: Callable[[int], tuple[int, int]],
    capacity_bytes: int,
    largest_holders: int = 1000,
) -> RankClassStatement:
    """What the ranks of one class will hold.

    `unlimited` is the replay on a device without end, `capped` the one that may reserve capacity less outside; the
    figures are those of the capped one, which is what will happen, unless it runs out of memory: then those of the
    unlimited one, which is what it would have taken. `interval` turns device bytes into their interval.
    """
    timeline = unlimited if capped.out_of_memory is not None else capped
    attribution = attribute(events, timeline)
    reserved = timeline.peak_reserved_bytes
    device_bytes = reserved + outside.total_bytes
    interval_bytes = interval(device_bytes)
    return RankClassStatement(
        representative=representative,
        ranks=ranks,
        coordinates=coordinates,
        peak=Peak(
            phase=attribution.phase,
            iteration=attribution.iteration,
            allocated_bytes=timeline.peak_allocated_bytes,
            reserved_bytes=reserved,
            device_bytes=device_bytes,
            interval_bytes=interval_bytes,
        ),
        capacity_bytes=capacity_bytes,
        verdict=decide(capped, interval_bytes, capacity_bytes),
        cache_releases=capped.cache_releases,
        at_peak=attribution.at_peak,
        phases=state_phases(events, timeline),
        outside_allocator=outside,
        holders=attribution.holders[:largest_holders],
    )
