"""From what ranks do on the host, of a spec or a program, to the sums and the statement of each kind of node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from planner.allocator.host.replay import HostTimeline, Moment, PinnedRules, replay_host
from planner.allocator.host.statement import HostPeak, HostStatement, NodeStatement
from planner.events import Phase
from planner.host_events import HostAlloc, HostEvent
from planner.job.rank_sets import RankSet

NodeKind = tuple[RankSet, tuple[tuple[int, int], ...]]
"""Nodes whose local ranks are of the same classes: pairs of a class's place in the list that was given and the number
of its ranks on each of these nodes."""


def node_kinds(classes: Sequence[RankSet], ranks_per_node: int) -> list[NodeKind]:
    """The kinds of nodes, by their first node; costs no more than the number of spans of the classes.

    Rank r is on node r // ranks_per_node, as torchrun numbers them.
    """
    edges: Counter[tuple[int, int]] = Counter()
    spans: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = defaultdict(list)
    for place, ranks in enumerate(classes):
        for first, last in ranks.spans:
            # Nodes at the ends of a span may have other ranks besides; those within have none.
            begin, end = first // ranks_per_node, last // ranks_per_node
            for node in {begin, end}:
                start = node * ranks_per_node
                edges[node, place] += min(last, start + ranks_per_node - 1) - max(first, start) + 1
            if end - begin > 1:
                spans[((place, ranks_per_node),)].append((begin + 1, end - 1))
    for node, here in groupby(sorted(edges.items()), key=lambda edge: edge[0][0]):
        spans[tuple((place, count) for (_, place), count in here)].append((node, node))
    return sorted(((RankSet.of(nodes), counts) for counts, nodes in spans.items()), key=lambda kind: kind[0].spans)


@dataclass(frozen=True, slots=True)
class TracedHost:
    """What one rank did on the host, and for which ranks it speaks."""

    ranks: RankSet
    events: Sequence[HostEvent]
    assumed: Sequence[str] = ()


_COUNTED = (
    "Main memory is what the job holds at least: tensors on the host, pinned memory, batches that are read ahead."
    " Processes, libraries, data sets and mapped files take more."
)
_SUMMED = "Ranks of a node are summed as they stand in the same phase."
_PINNED = (
    "Pinned memory as torch 2.13's CachingHostAllocator takes it, DeepSpeed's too: blocks rounded up to powers of two"
    " unless PYTORCH_ALLOC_CONF says otherwise, kept when they are given up."
)


def state_hosts(hosts: Sequence[TracedHost], *, ranks_per_node: int, capacity_bytes: int, conf: str) -> HostStatement:
    """What every node holds at least; ranks that hold the same are one class.

    `capacity_bytes` 0: nobody has said what a node has. `conf` is PYTORCH_ALLOC_CONF; raises AllocatorConfError for
    wrong settings of pinned memory.
    """
    rules = PinnedRules.from_conf(conf)
    timelines = align([replay_host(host.events, rules) for host in hosts])
    classes: list[tuple[HostTimeline, list[tuple[int, int]]]] = []
    for host, timeline in zip(hosts, timelines, strict=True):
        alike = next((spans for known, spans in classes if known == timeline), None)
        if alike is None:
            classes.append((timeline, list(host.ranks.spans)))
        else:
            alike += host.ranks.spans
    kinds = node_kinds([RankSet.of(spans) for _, spans in classes], ranks_per_node)
    nodes = [_state_node(kind, [timeline for timeline, _ in classes], ranks_per_node) for kind in kinds]
    pins = any(isinstance(event, HostAlloc) and event.pinned for host in hosts for event in host.events)
    assumed = sorted({f"{sentence[0].upper()}{sentence[1:]}." for host in hosts for sentence in host.assumed})
    return HostStatement(
        capacity_bytes=capacity_bytes,
        nodes=tuple(nodes),
        assumptions=(_COUNTED, _SUMMED, *([_PINNED] if pins else ()), *assumed),
    )


def align(timelines: Sequence[HostTimeline]) -> Iterator[HostTimeline]:
    """All with the same phases: one that only some ranks have (the first saves) finds the others as the phase before
    has them, in which they wait."""
    whose: dict[Moment, HostTimeline] = {}
    for timeline in timelines:
        for moment in timeline:
            whose.setdefault(moment, timeline)
    for own in timelines:
        aligned: HostTimeline = {}
        for moment, other in whose.items():
            before = list(other)[: list(other).index(moment)] if moment not in own else []
            # A process begins with the same phase.
            aligned[moment] = own[next((each for each in reversed(before) if each in own), moment)]
        yield aligned


def _state_node(kind: NodeKind, timelines: Sequence[HostTimeline], ranks_per_node: int) -> NodeStatement:
    (nodes, counts), sums = kind, HostTimeline()
    for place, count in counts:
        for moment, parts in timelines[place].items():
            sums.setdefault(moment, Counter()).update({category: size * count for category, size in parts.items()})
    phases = [
        HostPeak(phase=phase, iteration=iteration, bytes=parts.total()) for (phase, iteration), parts in sums.items()
    ]
    peak = max(phases, key=lambda point: point.bytes)
    spans = [(first * ranks_per_node, (last + 1) * ranks_per_node - 1) for first, last in nodes.spans]
    return NodeStatement(
        nodes=str(nodes),
        ranks=str(RankSet.of(spans)),
        peak=peak,
        parts=dict(sums[peak.phase, peak.iteration]),
        phases=tuple(_leave_out_repeats(phases)),
    )


def _leave_out_repeats(phases: Iterable[HostPeak]) -> Iterator[HostPeak]:
    """Of each phase the iterations that hold something else than the one before: a program runs hundreds."""
    before: dict[Phase, int] = {}
    for point in phases:
        if before.get(point.phase) != point.bytes:
            yield point
        before[point.phase] = point.bytes
