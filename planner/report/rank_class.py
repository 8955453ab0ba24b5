"""The statement about one rank class, from its events and replays: its phases, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.allocator.timeline import Timeline
from planner.events import Event, Phase
from planner.report.attribution import attribute, phase_spans
from planner.report.statement import OutsideAllocator, Peak, PhaseStatement, RankClassStatement, Verdict


def decide(capped: Timeline, interval_bytes: tuple[int, int], capacity_bytes: int) -> Verdict:
    """The verdict of one rank.

    `capped` is the replay that may reserve no more than capacity less what lives outside the allocator. It exceeds
    if that replay ran out of memory even after it had given its cache back. It is tight if it fits only after such
    cache releases, or if the interval's upper end does not fit. The reserved bytes of a replay without a limit
    decide nothing: they are elastic.
    """
    if capped.out_of_memory is not None:
        return Verdict.EXCEEDS
    if capped.cache_releases or interval_bytes[1] > capacity_bytes:
        return Verdict.TIGHT
    return Verdict.FITS


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
