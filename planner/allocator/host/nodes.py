"""From what ranks do on the host, of a spec or a program, to the sums and the statement of each kind of node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from planner.allocator.host.processes import (
    PINNED,
    SUMMED,
    PinnedRules,
    as_sentence,
    process_blocks,
    process_facts,
    process_margins,
    workers_sentence,
)
from planner.allocator.host.replay import HostPhase, RankTimeline, replay_host
from planner.allocator.host.statement import HostPeak, HostPhaseStatement, HostStatement, NodeStatement, RankHost
from planner.events import Phase
from planner.host_events import Backing, HostAlloc, HostBlock, HostCategory, HostEvent, LoaderStarted
from planner.job.rank_sets import RankSet
from planner.job.schema import DataLoader, Job
from planner.units import show_bytes


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes whose local ranks are of the same classes. `counts` are pairs of a class's place in the list that was given
    and the number of its ranks on each of these nodes."""

    nodes: RankSet
    counts: tuple[tuple[int, int], ...]


def node_kinds(classes: Sequence[RankSet], ranks_per_node: int) -> tuple[NodeKind, ...]:
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
    kinds = (NodeKind(RankSet.of(nodes), counts) for counts, nodes in spans.items())
    return tuple(sorted(kinds, key=lambda kind: kind.nodes.spans))


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

    @property
    def by_moment(self) -> dict[Moment, HostPhase]:
        return {(phase.phase, phase.iteration): phase for phase in self.timeline.phases}

    @property
    def highest(self) -> HostPhase:
        return max(self.timeline.phases, key=lambda phase: phase.held_bytes)


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
    nodes = []
    for kind in node_kinds([ranks.ranks for ranks in classes], ranks_per_node):
        here = [(classes[place], count) for place, count in kind.counts]
        by_moment = [(ranks.by_moment, ranks.highest, count) for ranks, count in here]
        sums: dict[Moment, _Sum] = {}
        for moment in dict.fromkeys(moment for phases, _, _ in by_moment for moment in phases):
            sums[moment] = _sum([(phases.get(moment, highest), count) for phases, highest, count in by_moment])
        (phase, iteration), highest = max(sums.items(), key=lambda row: row[1].bytes)
        apart = _sum([(top, count) for _, top, count in by_moment])
        fewer, more = (sum(ranks.margins[side] * count for ranks, count in here) for side in (0, 1))
        spans = [(first * ranks_per_node, (last + 1) * ranks_per_node - 1) for first, last in kind.nodes.spans]
        nodes.append(
            NodeStatement(
                nodes=str(kind.nodes),
                ranks=str(RankSet.of(spans)),
                peak=HostPeak(
                    phase=phase,
                    iteration=iteration,
                    bytes=highest.bytes,
                    interval_bytes=(max(highest.bytes - fewer, 0), max(highest.bytes, apart.bytes) + more),
                ),
                parts=dict(highest.parts),
                file_bytes=highest.file_bytes,
                local_ranks=tuple(_rank(ranks, count) for ranks, count in here),
                phases=tuple(
                    HostPhaseStatement(phase=phase, iteration=iteration, bytes=held.bytes)
                    for (phase, iteration), held in sums.items()
                ),
            )
        )
    return tuple(nodes)


def _sum(phases: Sequence[tuple[HostPhase, int]]) -> _Sum:
    """Own bytes of every rank; what is shared under one name once, by the rank that has most."""
    parts: Counter[HostCategory] = Counter()
    shared: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for phase, count in phases:
        for category, size in phase.own.items():
            parts[category] += size * count
        shared |= Counter(phase.node)
        files |= Counter(phase.files)
    if shared:
        parts[HostCategory.SHARED] += shared.total()
    return _Sum(parts, files.total())


def _rank(ranks: RankOnHost, count: int) -> RankHost:
    workers = ranks.highest.own.get(HostCategory.WORKER, 0)
    resident = max(
        phase.held_bytes - phase.own.get(HostCategory.WORKER, 0) + sum(phase.files.values())
        for phase in ranks.timeline.phases
    )
    return RankHost(representative=ranks.representative, count=count, resident_bytes=resident, worker_bytes=workers)


_DATASET = "data set"


@dataclass(frozen=True, slots=True)
class TracedHost:
    """What the representative of a class did on the host, and for which ranks it speaks."""

    representative: int
    ranks: RankSet
    events: Sequence[HostEvent]
    assumed: Sequence[str] = ()


def state_hosts(job: Job, traced: Sequence[TracedHost]) -> HostStatement:
    """What every node of the job will hold. Raises AllocatorConfError for settings of pinned memory that are none."""
    rules, loader = PinnedRules.from_conf(job.allocator.conf), job.train.data_loader
    facts = process_facts(transformers=job.model.hf_config is not None)
    base = tuple(process_blocks(facts))
    if loader.dataset_bytes:
        base = (*base, HostBlock(bytes=loader.dataset_bytes, category=HostCategory.DATASET, name=_DATASET))
    margins = process_margins(facts)
    classes = [
        RankOnHost.of(
            host.representative, host.ranks, replay_host(host.events, base=base, loader=loader, rules=rules), margins
        )
        for host in traced
    ]
    return HostStatement(
        capacity_bytes=job.cluster.host_memory,
        nodes=sum_nodes(classes, job.cluster.gpus_per_node),
        assumptions=(*(as_sentence(fact.source) for fact in facts), SUMMED, *_spec_assumptions(job, traced)),
    )


def _spec_assumptions(job: Job, traced: Sequence[TracedHost]) -> Iterator[str]:
    loader = job.train.data_loader
    if not loader.workers:
        yield "Data is loaded in the rank's own process (train.data_loader.workers: 0)."
    else:
        yield workers_sentence()
    if not loader.dataset_bytes and not loader.worker_bytes:
        yield "The data set takes nothing by itself (train.data_loader.dataset_bytes, worker_bytes)."
    blocks = [event.held for host in traced for event in host.events if isinstance(event, HostAlloc)]
    if loader.pin_memory or any(block.pinned for block in blocks):
        yield PINNED
    files = max((block.bytes for block in blocks if block.backing is Backing.FILE), default=0)
    if files:
        yield f"Mapped files (pieces up to {show_bytes(files)}) are given back when memory is short: not counted."
    if job.train.checkpoint_load is None:
        yield "No weights are loaded on the host (train.checkpoint_load), and no model is built there."
    if job.parallel.deepspeed is not None:
        yield "DeepSpeed pins by torch (DS_PIN_MEMORY_BACKEND is not native)."
    yield from map(as_sentence, sorted({sentence for host in traced for sentence in host.assumed}))


_COUNTED = (
    "Tensors on the host count with the sizes of their storages, from a page on, whether they are written or not."
)
_NOT_COUNTED = (
    "Not counted: what numpy, pandas, Arrow and tokenizers hold (data sets above all), Python's own objects, shared"
    " memory that the program makes itself, and what the C library keeps of freed blocks below 32 MiB."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramHost:
    """What one rank of a program did on the host, and for which ranks it speaks."""

    representative: int
    ranks: RankSet
    events: Sequence[HostEvent]
    transformers: bool
    """Whether it has imported them."""
    assumed: Sequence[str] = ()


def state_program_hosts(
    hosts: Sequence[ProgramHost], *, ranks_per_node: int, capacity_bytes: int, conf: str
) -> HostStatement:
    """What every node of the program will hold; ranks that hold the same are one class.

    `capacity_bytes` 0: nobody has said what a node has. `conf` is PYTORCH_ALLOC_CONF; raises AllocatorConfError for
    settings of pinned memory that are none.
    """
    rules = PinnedRules.from_conf(conf)
    replayed = []
    for host in hosts:
        facts = process_facts(transformers=host.transformers)
        timeline = replay_host(host.events, base=tuple(process_blocks(facts)), loader=DataLoader(), rules=rules)
        replayed.append(RankOnHost.of(host.representative, host.ranks, timeline, process_margins(facts)))
    classes: list[RankOnHost] = []
    for ranks in _align(replayed):
        content = (ranks.timeline, ranks.margins)
        alike = next((at for at, known in enumerate(classes) if (known.timeline, known.margins) == content), None)
        if alike is None:
            classes.append(ranks)
        else:
            both = RankSet.of((*classes[alike].ranks.spans, *ranks.ranks.spans))
            classes[alike] = replace(classes[alike], ranks=both)
    nodes = tuple(replace(node, phases=_changes(node.phases)) for node in sum_nodes(classes, ranks_per_node))
    assumptions = tuple(_program_assumptions(hosts))
    return HostStatement(capacity_bytes=capacity_bytes, nodes=nodes, assumptions=assumptions)


def _align(classes: Sequence[RankOnHost]) -> Iterator[RankOnHost]:
    """All with the same phases: one that only some ranks have (the first saves) finds the others as the phase before
    has them, in which they wait."""
    orders = [list(ranks.by_moment) for ranks in classes]
    order_of = {moment: order for order in reversed(orders) for moment in order}
    for ranks in classes:
        own = ranks.by_moment
        waits = []
        for (phase, iteration), order in order_of.items():
            if (phase, iteration) not in own:
                # In the order of another rank; a process begins with the same phase.
                earlier = reversed(order[: order.index((phase, iteration))])
                before = next(own[moment] for moment in earlier if moment in own)
                waits.append(replace(before, phase=phase, iteration=iteration))
        yield replace(ranks, timeline=replace(ranks.timeline, phases=(*ranks.timeline.phases, *waits)))


def _changes(phases: Iterable[HostPhaseStatement]) -> tuple[HostPhaseStatement, ...]:
    """Of each phase the iterations that hold something else than the one before: a program runs hundreds."""
    before: dict[Phase, int] = {}
    kept = []
    for phase in phases:
        if before.get(phase.phase) != phase.bytes:
            kept.append(phase)
        before[phase.phase] = phase.bytes
    return tuple(kept)


def _program_assumptions(hosts: Sequence[ProgramHost]) -> Iterator[str]:
    for fact in process_facts(transformers=any(host.transformers for host in hosts)):
        yield as_sentence(fact.source)
    yield SUMMED
    yield _COUNTED
    yield _NOT_COUNTED
    events = [event for host in hosts for event in host.events]
    blocks = [event.held for event in events if isinstance(event, HostAlloc)]
    loaders = [event for event in events if isinstance(event, LoaderStarted)]
    if loaders:
        yield workers_sentence()
    if any(loader.spawned for loader in loaders):
        yield "Workers that are spawned, not forked, read PyTorch anew: each takes what a process with PyTorch does."
    if any(block.pinned for block in blocks) or any(loader.pin_memory for loader in loaders):
        yield PINNED
    files = sum({block.name: block.bytes for block in blocks if block.backing is Backing.FILE}.values())
    if files:
        yield f"Mapped files ({show_bytes(files)} in all) are given back when memory is short: not counted."
    yield from map(as_sentence, sorted({sentence for host in hosts for sentence in host.assumed}))
