"""From the traces of a job's ranks to the statement about its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from planner.host.processes import Fact
from planner.host.replay import replay_host
from planner.host.statement import HostStatement
from planner.host.summing import RankOnHost, sum_nodes
from planner.host_events import Backing, HostAlloc, HostBlock, HostCategory, HostEvent
from planner.job.schema import Job
from planner.layout.rank_sets import RankSet
from planner.units import show_bytes

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
        assumptions=tuple(_assumptions(job, traced)),
    )


def _facts(job: Job) -> list[Fact]:
    return process_facts(transformers=job.model.hf_config is not None)


def _base(job: Job) -> Iterator[HostBlock]:
    yield from process_blocks(_facts(job))
    if dataset := job.train.data_loader.dataset_bytes:
        yield HostBlock(bytes=dataset, category=HostCategory.DATASET, name=_DATASET)


def _assumptions(job: Job, traced: Sequence[TracedHost]) -> Iterator[str]:
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
