"""From what ranks do on the host, of a spec or a program, to the sums and the statement of each kind of node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.host.pinned import PinnedRules
from planner.allocator.host.processes import (
    PINNED,
    SUMMED,
    Fact,
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
    whole: list[tuple[int, int, int]] = []
    for place, ranks in enumerate(classes):
        for first, last in ranks.spans:
            _add_span(place, first, last, ranks_per_node, edges, whole)
    by_node: dict[int, list[tuple[int, int]]] = {}
    for (node, place), count in sorted(edges.items()):
        by_node.setdefault(node, []).append((place, count))
    spans: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for node, counts in by_node.items():
        spans.setdefault(tuple(counts), []).append((node, node))
    for place, first, last in whole:
        spans.setdefault(((place, ranks_per_node),), []).append((first, last))
    kinds = (NodeKind(RankSet.of(each), counts) for counts, each in spans.items())
    return tuple(sorted(kinds, key=lambda kind: kind.nodes.spans))


def _add_span(
    place: int,
    first: int,
    last: int,
    size: int,
    edges: Counter[tuple[int, int]],
    whole: list[tuple[int, int, int]],
) -> None:
    """Nodes at the ends of a span may have other ranks besides; those within have none."""
    begin, end = first // size, last // size
    for node in dict.fromkeys((begin, end)):
        edges[node, place] += min(last, node * size + size - 1) - max(first, node * size) + 1
    if end - begin > 1:
        whole.append((place, begin + 1, end - 1))


def ranks_of(nodes: RankSet, ranks_per_node: int) -> RankSet:
    """All ranks of these nodes."""
    return RankSet.of((first * ranks_per_node, (last + 1) * ranks_per_node - 1) for first, last in nodes.spans)


def count_nodes(kinds: Iterable[NodeKind]) -> int:
    """How many nodes there are of all kinds."""
    return sum(len(each.nodes) for each in kinds)


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
    rules, base = PinnedRules.from_conf(job.allocator.conf), tuple(_base(job))
    margins = process_margins(_facts(job))
    classes = []
    for each in traced:
        timeline = replay_host(each.events, base=base, loader=job.train.data_loader, rules=rules)
        classes.append(RankOnHost.of(each.representative, each.ranks, timeline, margins))
    return HostStatement(
        capacity_bytes=job.cluster.host_memory,
        nodes=sum_nodes(classes, job.cluster.gpus_per_node),
        assumptions=tuple(_spec_assumptions(job, traced)),
    )


def _facts(job: Job) -> list[Fact]:
    return process_facts(transformers=job.model.hf_config is not None)


def _base(job: Job) -> Iterator[HostBlock]:
    yield from process_blocks(_facts(job))
    if dataset := job.train.data_loader.dataset_bytes:
        yield HostBlock(bytes=dataset, category=HostCategory.DATASET, name=_DATASET)


def _spec_assumptions(job: Job, traced: Sequence[TracedHost]) -> Iterator[str]:
    for fact in _facts(job):
        yield as_sentence(fact.source)
    yield SUMMED
    yield from _of_the_loader(job)
    blocks = [event.held for each in traced for event in each.events if isinstance(event, HostAlloc)]
    pins = job.train.data_loader.pin_memory or any(each.pinned for each in blocks)
    if pins:
        yield PINNED
    files = max((each.bytes for each in blocks if each.backing is Backing.FILE), default=0)
    if files:
        yield f"Mapped files (pieces up to {show_bytes(files)}) are given back when memory is short: not counted."
    if job.train.checkpoint_load is None:
        yield "No weights are loaded on the host (train.checkpoint_load), and no model is built there."
    if job.parallel.deepspeed is not None:
        yield "DeepSpeed pins by torch (DS_PIN_MEMORY_BACKEND is not native)."
    for sentence in sorted({sentence for each in traced for sentence in each.assumed}):
        yield as_sentence(sentence)


def _of_the_loader(job: Job) -> Iterator[str]:
    loader = job.train.data_loader
    if not loader.workers:
        yield "Data is loaded in the rank's own process (train.data_loader.workers: 0)."
    else:
        yield workers_sentence()
    if not loader.dataset_bytes and not loader.worker_bytes:
        yield "The data set takes nothing by itself (train.data_loader.dataset_bytes, worker_bytes)."


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
    classes: list[RankOnHost] = []
    for found in _aligned([_replay(each, rules) for each in hosts]):
        alike = next((at for at, known in enumerate(classes) if _hold_the_same(known, found)), None)
        if alike is None:
            classes.append(found)
        else:
            both = RankSet.of((*classes[alike].ranks.spans, *found.ranks.spans))
            classes[alike] = replace(classes[alike], ranks=both)
    return HostStatement(
        capacity_bytes=capacity_bytes,
        nodes=tuple(map(_without_repetition, sum_nodes(classes, ranks_per_node))),
        assumptions=tuple(_program_assumptions(hosts)),
    )


def _replay(host: ProgramHost, rules: PinnedRules) -> RankOnHost:
    facts = process_facts(transformers=host.transformers)
    timeline = replay_host(host.events, base=tuple(process_blocks(facts)), loader=DataLoader(), rules=rules)
    return RankOnHost.of(host.representative, host.ranks, timeline, process_margins(facts))


def _aligned(ranks: Sequence[RankOnHost]) -> Iterator[RankOnHost]:
    """All with the same phases: one that only some ranks have (the first saves) finds the others as the phase before
    has them, in which they wait."""
    orders = [[(each.phase, each.iteration) for each in rank.timeline.phases] for rank in ranks]
    every = {moment: order for order in reversed(orders) for moment in order}
    for rank in ranks:
        own = {(each.phase, each.iteration): each for each in rank.timeline.phases}
        waits = [
            replace(_phase_before(own, order, moment), phase=moment[0], iteration=moment[1])
            for moment, order in every.items()
            if moment not in own
        ]
        yield replace(rank, timeline=replace(rank.timeline, phases=(*rank.timeline.phases, *waits)))


def _phase_before(own: Mapping[Moment, HostPhase], order: Sequence[Moment], moment: Moment) -> HostPhase:
    """The last phase of these before a moment in the order of another rank; a process begins with the same one."""
    before = order[: order.index(moment)]
    return next(own[each] for each in reversed(before) if each in own)


def _without_repetition(node: NodeStatement) -> NodeStatement:
    """Of each phase the iterations that hold something else than the one before: a program runs hundreds."""
    before: dict[Phase, int] = {}
    kept = []
    for each in node.phases:
        if before.get(each.phase) != each.bytes:
            kept.append(each)
        before[each.phase] = each.bytes
    return replace(node, phases=tuple(kept))


def _hold_the_same(one: RankOnHost, other: RankOnHost) -> bool:
    return (one.timeline, one.margins) == (other.timeline, other.margins)


def _program_assumptions(hosts: Sequence[ProgramHost]) -> Iterator[str]:
    for fact in process_facts(transformers=any(each.transformers for each in hosts)):
        yield as_sentence(fact.source)
    yield SUMMED
    yield _COUNTED
    yield _NOT_COUNTED
    events = [event for each in hosts for event in each.events]
    blocks = [event.held for event in events if isinstance(event, HostAlloc)]
    loaders = [event for event in events if isinstance(event, LoaderStarted)]
    if loaders:
        yield workers_sentence()
    if any(each.spawned for each in loaders):
        yield "Workers that are spawned, not forked, read PyTorch anew: each takes what a process with PyTorch does."
    if any(each.pinned for each in blocks) or any(each.pin_memory for each in loaders):
        yield PINNED
    files = sum({each.name: each.bytes for each in blocks if each.backing is Backing.FILE}.values())
    if files:
        yield f"Mapped files ({show_bytes(files)} in all) are given back when memory is short: not counted."
    for sentence in sorted({sentence for each in hosts for sentence in each.assumed}):
        yield as_sentence(sentence)
