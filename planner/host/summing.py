"""Sums what the ranks of each node hold, phase by phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.events import Phase
from planner.host.nodes import NodeKind, node_kinds, ranks_of
from planner.host.replay import HostPhase, RankTimeline
from planner.host.statement import HostPeak, HostPhaseStatement, NodeStatement, RankHost
from planner.host_events import HostCategory
from planner.layout.rank_sets import RankSet

Moment = tuple[Phase, int]


@dataclass(frozen=True, slots=True)
class RankOnHost:
    """The ranks of one class: what each of them holds, and by how many bytes fewer or more that may be."""

    representative: int
    ranks: RankSet
    timeline: RankTimeline
    margins: tuple[int, int]

    @classmethod
    def of(
        cls, representative: int, ranks: RankSet, timeline: RankTimeline, process_margins: tuple[int, int]
    ) -> RankOnHost:
        """With the margins of the process and of its data loader's workers together."""
        fewer, more = (own + workers for own, workers in zip(process_margins, timeline.worker_margins, strict=True))
        return cls(representative, ranks, timeline, (fewer, more))


@dataclass(frozen=True, slots=True)
class _Sum:
    parts: Counter[HostCategory]
    file_bytes: int

    @property
    def bytes(self) -> int:
        return self.parts.total()


def sum_nodes(classes: Sequence[RankOnHost], ranks_per_node: int) -> tuple[NodeStatement, ...]:
    """A statement for each kind of node.

    Ranks of a node are summed in the same phase of the same iteration; a rank that does not have that phase counts with
    its highest point. The upper end of the interval is that of ranks that have their highest points all at once.
    """
    kinds = node_kinds([each.ranks for each in classes], ranks_per_node)
    return tuple(_state(kind, classes, ranks_per_node) for kind in kinds)


def _state(kind: NodeKind, classes: Sequence[RankOnHost], ranks_per_node: int) -> NodeStatement:
    here = [(classes[place], count) for place, count in kind.counts]
    by_moment = [({(each.phase, each.iteration): each for each in ranks.timeline.phases}, ranks) for ranks, _ in here]
    sums: dict[Moment, _Sum] = {}
    for moment in dict.fromkeys(moment for found, _ in by_moment for moment in found):
        then = [found.get(moment) or _highest(ranks.timeline) for found, ranks in by_moment]
        sums[moment] = _sum([(phase, count) for phase, (_, count) in zip(then, here, strict=True)])
    (phase, iteration), highest = max(sums.items(), key=lambda found: found[1].bytes)
    apart = _sum([(_highest(each.timeline), count) for each, count in here])
    fewer, more = (sum(each.margins[side] * count for each, count in here) for side in (0, 1))
    return NodeStatement(
        nodes=str(kind.nodes),
        ranks=str(ranks_of(kind.nodes, ranks_per_node)),
        peak=HostPeak(
            phase=phase,
            iteration=iteration,
            bytes=highest.bytes,
            interval_bytes=(max(highest.bytes - fewer, 0), max(highest.bytes, apart.bytes) + more),
        ),
        parts=dict(highest.parts),
        file_bytes=highest.file_bytes,
        local_ranks=tuple(_rank(each, count) for each, count in here),
        phases=tuple(
            HostPhaseStatement(phase=moment[0], iteration=moment[1], bytes=found.bytes)
            for moment, found in sums.items()
        ),
    )


def _highest(timeline: RankTimeline) -> HostPhase:
    return max(timeline.phases, key=lambda each: each.held_bytes)


def _sum(phases: Sequence[tuple[HostPhase, int]]) -> _Sum:
    """Own bytes of every rank; what is shared under one name once, by whoever has most of it."""
    parts: Counter[HostCategory] = Counter()
    shared: dict[str, int] = {}
    files: dict[str, int] = {}
    for phase, count in phases:
        for category, size in phase.own.items():
            parts[category] += size * count
        for into, found in ((shared, phase.node), (files, phase.files)):
            for name, size in found.items():
                into[name] = max(into.get(name, 0), size)
    if shared:
        parts[HostCategory.SHARED] += sum(shared.values())
    return _Sum(parts, sum(files.values()))


def _rank(ranks: RankOnHost, count: int) -> RankHost:
    highest = _highest(ranks.timeline)
    workers = highest.own.get(HostCategory.WORKER, 0)
    resident = max(
        each.held_bytes - each.own.get(HostCategory.WORKER, 0) + sum(each.files.values())
        for each in ranks.timeline.phases
    )
    return RankHost(representative=ranks.representative, count=count, resident_bytes=resident, worker_bytes=workers)
