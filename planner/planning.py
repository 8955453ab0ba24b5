"""From a job to its plan: the one module that knows the whole chain.

job -> layout -> trace of each rank class -> replay through the allocator -> statement.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.calibration.correction import Applied
from planner.calibration.interval import Calibration, interval
from planner.errors import SpecError
from planner.events import Event
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import RankClass, parts_of, rank_classes
from planner.overhead import table
from planner.overhead.estimate import Outside, outside
from planner.report.rank_class import state_rank_class
from planner.report.statement import OutsideAllocator, Plan, Provenance, RankClassStatement, Seconds
from planner.spec import bundle, catalog, deepspeed
from planner.spec.job import Job
from planner.spec.json_text import canonical_json
from planner.tracing import collector
from planner.tracing.isolated import USUAL_LIMITS, Limits, trace_isolated
from planner.tracing.traced import Trace

Progress = Callable[[str], None]


_COMPILED = (
    "The job runs under torch.compile, and this is the memory of the eager program: published compiled runs took 7 %"
    " (Llama-2-7B, FSDP2, full recompute), 9 % (the same, selective) and 15 % (Llama-3.2-3B, no recompute) less."
)
"""torchtitan and torchtune, max_reserved 28.72 GiB for 31.02, 53.83 for 59.41; peak active 51.0 for 60.0."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank class and what its representative did."""

    rank_class: RankClass
    trace: Trace


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from, for whoever draws the memory over time."""

    plan: Plan
    traces: tuple[RankTrace, ...]
    timelines: tuple[Timeline, ...]
    notes: tuple[str, ...] = ()
    """Sentences for people: where the figures outside the allocator come from, and which corrections were applied."""


def plan(job: Job, calibration: Calibration | None = None) -> Plan:
    """The plan of a job. Raises SpecError, TraceError or AllocatorConfError for what cannot be planned."""
    return planned(job, calibration).plan


def planned(
    job: Job,
    calibration: Calibration | None = None,
    progress: Progress = lambda _: None,
    limits: Limits = USUAL_LIMITS,
    target: str = "",
) -> Planned:
    """The plan, with its traces and timelines.

    `limits` are those of a factory's process; `target` says whose kernels are traced (default: the job's GPU).
    """
    refuse_unplannable(job)
    return judged(job, traces(job, progress, limits, target), calibration, progress)


def refuse_unplannable(job: Job) -> None:
    """Raises SpecError or AllocatorConfError for what can be said before the work: no GPU, a setting not modelled."""
    if job.cluster.gpu.total_bytes == 0:
        raise SpecError(
            "the job names no GPU, so nothing can be said of whether it fits",
            allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}",
            place="cluster.gpu",
        )
    Rules.from_conf(job.allocator.conf)


def traces(
    job: Job, progress: Progress = lambda _: None, limits: Limits = USUAL_LIMITS, target: str = ""
) -> tuple[RankTrace, ...]:
    """One trace for each rank class; where shards do not divide, one for each part of the class besides."""
    classes = rank_classes(Mesh.of(job.parallel))
    return tuple(trace for each in classes for trace in traces_of_class(job, each, progress, limits, target))


def traces_of_class(
    job: Job,
    rank_class: RankClass,
    progress: Progress = lambda _: None,
    limits: Limits = USUAL_LIMITS,
    target: str = "",
) -> Iterator[RankTrace]:
    """The trace of one rank class, or of each of its parts."""
    progress(f"tracing ranks {rank_class.ranks}")
    trace = trace_of_rank(job, rank_class.representative, limits, target)
    for part in parts_of_class(job, rank_class, trace):
        if part.representative != rank_class.representative:
            progress(f"tracing ranks {part.ranks}, whose part is of another size")
            trace = trace_of_rank(job, part.representative, limits, target)
        yield RankTrace(part, trace)


def parts_of_class(job: Job, rank_class: RankClass, trace: Trace) -> tuple[RankClass, ...]:
    """The classes into which one falls by what its representative did: each but the first has to be traced as well."""
    return parts_of(Mesh.of(job.parallel), rank_class, trace.sharded_dims, trace.parts)


def with_their_ranks(job: Job, by_representative: Mapping[int, Trace]) -> tuple[RankTrace, ...]:
    """Traces already made, with the ranks for which each speaks. Raises KeyError if one is missing."""
    return tuple(
        RankTrace(part, by_representative[part.representative])
        for each in rank_classes(Mesh.of(job.parallel))
        for part in parts_of_class(job, each, by_representative[each.representative])
    )


def trace_of_rank(job: Job, rank: int, limits: Limits = USUAL_LIMITS, target: str = "") -> Trace:
    """What one rank does: traced here, or, if the job brings code, in a process of its own under `limits`."""
    if job.model.factory:
        return trace_isolated(job, rank, target=target, limits=limits)
    from planner.tracing.trace import trace

    return trace(job, rank, target)


def judged(
    job: Job,
    rank_traces: Sequence[RankTrace],
    calibration: Calibration | None = None,
    progress: Progress = lambda _: None,
) -> Planned:
    """The plan that follows from traces already made: replay, verdict, identity."""
    began = time.perf_counter()
    known = Calibration.none() if calibration is None else calibration
    progress("replaying through the allocator")
    pairs = [judge(job, each, known) for each in rank_traces]
    replayed = time.perf_counter() - began
    traced = sum(each.trace.seconds for each in rank_traces)
    return together(job, rank_traces, pairs, known, Seconds(trace=traced, replay=replayed, total=traced + replayed))


def together(
    job: Job,
    rank_traces: Sequence[RankTrace],
    judgements: Sequence[tuple[RankClassStatement, Timeline]],
    calibration: Calibration,
    seconds: Seconds,
) -> Planned:
    """The plan that consists of these judgements, one for each trace."""
    provenance = provenance_of(calibration)
    trace_id = trace_id_of(job)
    finished = Plan(
        plan_id=plan_id(trace_id, provenance),
        trace_id=trace_id,
        calibrated=_applied(calibration, job).calibrated,
        job=bundle.bundle(job),
        rank_classes=tuple(statement for statement, _ in judgements),
        provenance=provenance,
        seconds=Seconds(trace=round(seconds.trace, 3), replay=round(seconds.replay, 3), total=round(seconds.total, 3)),
    )
    notes = (*_notes(job, rank_traces), *_applied(calibration, job).sentences)
    return Planned(finished, tuple(rank_traces), tuple(timeline for _, timeline in judgements), notes)


def judge(job: Job, rank_trace: RankTrace, calibration: Calibration) -> tuple[RankClassStatement, Timeline]:
    """One trace's replay and what follows from it."""
    with collector.off():
        return _judge(job, rank_trace, calibration)


def _judge(job: Job, rank_trace: RankTrace, calibration: Calibration) -> tuple[RankClassStatement, Timeline]:
    rules = Rules.from_conf(job.allocator.conf)
    held = _applied(calibration, job).corrected(outside_of(job))
    capacity = job.cluster.gpu.total_bytes - job.cluster.held_by_others_bytes
    events: Sequence[Event] = rank_trace.trace.events
    capped = replay(events, rules, max(capacity - held.total_bytes, 0), device_bytes=job.cluster.gpu.total_bytes)
    # What it would have taken is asked for only where it does not get it.
    timeline = replay(events, rules) if capped.out_of_memory is not None else capped
    statement = state_rank_class(
        representative=rank_trace.rank_class.representative,
        ranks=str(rank_trace.rank_class.ranks),
        coordinates=rank_trace.rank_class.coordinates,
        events=events,
        unlimited=timeline,
        capped=capped,
        outside=OutsideAllocator(cuda_context_bytes=held.cuda_context_bytes, nccl_bytes=held.nccl_bytes),
        interval=lambda device_bytes: interval(
            device_bytes,
            held,
            calibration,
            unknown_workspaces=bool(rank_trace.trace.unknown_workspaces),
            gpu=job.cluster.gpu.name,
            torch=job.software.torch,
        ),
        capacity_bytes=capacity,
    )
    return statement, timeline


def _notes(job: Job, rank_traces: Sequence[RankTrace]) -> tuple[str, ...]:
    notes = list(outside_of(job).provenance)
    unknown = sorted({name for each in rank_traces for name in each.trace.unknown_workspaces})
    if unknown:
        notes.append(f"Workspaces of unknown size, not counted: {'; '.join(unknown)}.")
    if job.train.compile:
        notes.append(_COMPILED)
    traced = ".".join(_software()["torch"].split(".")[:2])
    if job.software.torch != traced:
        notes.append(f"The job runs torch {job.software.torch}; it was traced with torch {traced}.")
    return tuple(notes)


def _applied(calibration: Calibration, job: Job) -> Applied:
    return calibration.applied_to(job.cluster.gpu.name, job.software.torch)


def outside_of(job: Job) -> Outside:
    """What lives outside the allocator, before any calibration: a communicator for each axis of more than one."""
    degrees = Mesh.of(job.parallel).degrees
    return outside(job.cluster.gpu, job.software, [degree for degree in degrees if degree > 1])


def trace_id_of(job: Job) -> str:
    """What the traces of this job are stored under, with the software of this process; metadata do not matter."""
    by_deepspeed = job.parallel.deepspeed is not None and deepspeed.zero_of(job).stage == 3
    return bundle.trace_id(job, {**_software(), **({"deepspeed": _version("deepspeed")} if by_deepspeed else {})})


def provenance_of(calibration: Calibration) -> Provenance:
    """The versions and tables on which the figures hinge."""
    software = _software()
    return Provenance(
        planner=software["planner"],
        torch=software["torch"],
        allocator_rules=_allocator_rules(),
        catalog=_catalog(),
        calibration=calibration.id,
    )


def plan_id(trace_id: str, provenance: Provenance) -> str:
    """`pl-` and 26 base32 characters, lower case: short enough for a Kubernetes label."""
    parts = {
        "trace_id": trace_id,
        "allocator_rules": provenance.allocator_rules,
        "catalog": provenance.catalog,
        "calibration": provenance.calibration,
    }
    digest = hashlib.sha256(canonical_json(parts).encode()).digest()
    return "pl-" + base64.b32encode(digest).decode().lower()[:26]


@functools.cache
def _allocator_rules() -> str:
    return _digest(repr(Rules.from_conf("")))


@functools.cache
def _catalog() -> str:
    return _digest(repr((sorted(catalog.gpus().items()), table.CONTEXTS, table.COMMUNICATORS)))


@functools.cache
def _software() -> Mapping[str, str]:
    return {name: _version(name) for name in ("planner", "torch", "transformers")}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
