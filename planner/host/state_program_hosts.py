"""From what the ranks of a program did on the host to the statement about its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.events import Phase
from planner.host.pinned import PinnedRules
from planner.host.process_parts import (
    PINNED,
    SUMMED,
    as_sentence,
    process_blocks,
    process_facts,
    process_margins,
    workers_sentence,
)
from planner.host.replay import HostPhase, replay_host
from planner.host.statement import HostStatement, NodeStatement
from planner.host.summing import Moment, RankOnHost, sum_nodes
from planner.host_events import Backing, HostAlloc, HostEvent, LoaderStarted
from planner.job.schema import DataLoader
from planner.layout.rank_sets import RankSet
from planner.units import show_bytes

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
        assumptions=tuple(_assumptions(hosts)),
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


def _assumptions(hosts: Sequence[ProgramHost]) -> Iterator[str]:
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
