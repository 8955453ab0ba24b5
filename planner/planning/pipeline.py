"""Plans a job step by step: the one module that knows the whole chain.

job -> layout -> trace of each rank class -> replay through the allocator -> statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.rules import Rules
from planner.allocator.settled import replay_until_settled
from planner.allocator.timeline import Timeline
from planner.calibration.approximations import approximations_of
from planner.calibration.correction import AppliedCorrection
from planner.calibration.interval import Calibration, interval
from planner.errors import SpecError
from planner.events import Event
from planner.host.state_hosts import TracedHost, state_hosts
from planner.job import bundle
from planner.job.schema import Compile, Job
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import RankClass, first_rank_differs, parts_of, rank_classes, set_first_apart
from planner.overhead.estimate import OutsideEstimate, outside
from planner.planning import identity, post_training
from planner.planning.assumptions import assumptions_of
from planner.planning.evaluation_moments import evaluation_moments
from planner.planning.kept_by_mistake import growth_moments
from planner.planning.long_runs import replay_run
from planner.planning.measured_calibration import measured_calibration
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.rank_class import state_rank_class
from planner.report.statement import OutsideAllocator, Plan, RankClassStatement, Seconds, Verdict
from planner.rollout.asleep_on_host import with_sleeping_weights
from planner.rollout.engine_figures import EngineFigures
from planner.tracing import garbage_collection
from planner.tracing.traced import Trace

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank class and what its representative did."""

    rank_class: RankClass
    trace: Trace


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """A plan with what it was made from, for whoever draws the memory over time."""

    plan: Plan
    traces: tuple[RankTrace, ...]
    timelines: tuple[Timeline, ...]
    notes: tuple[str, ...] = ()
    """Sentences for people: where the figures outside the allocator come from, and which corrections were applied."""

    def events_of(self, rank: int) -> tuple[Event, ...]:
        """What was predicted for a rank, by the trace of its class; nothing for a rank that the job does not have."""
        return next((each.trace.written_out() for each in self.traces if rank in each.rank_class.ranks), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningInputs:
    """What is planned and how. `source` gives the traces; `target` says whose kernels are traced
    (default: the job's GPU)."""

    job: Job
    calibration: Calibration
    source: TraceSource = USUAL_SOURCE
    target: str = ""
    keep_traces: bool = True
    """Whether events and timelines are wanted: they are large where they travel between processes."""


@dataclass(frozen=True, slots=True)
class PlannedClass:
    """A rank class that was traced and judged: each of its parts."""

    traces: tuple[RankTrace, ...]
    judgements: tuple[tuple[RankClassStatement, Timeline], ...]
    replay_seconds: float
    whole: bool = True
    """Whether traces and timelines are there; only then does the plan have them."""


Executor = Callable[[PlanningInputs, Sequence[RankClass], Progress], Sequence[PlannedClass]]
"""Plans the rank classes of a job, here or elsewhere, and returns them in their order."""


def plan(job: Job, calibration: Calibration | None = None) -> Plan:
    """The plan of a job. Raises SpecError, TraceError or AllocatorConfError for what cannot be planned."""
    return plan_with_traces(job, calibration).plan


def plan_with_traces(
    job: Job,
    calibration: Calibration | None = None,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
    target: str = "",
) -> PlanningResult:
    """The plan with its traces and timelines, made in this process."""
    known = measured_calibration() if calibration is None else calibration
    return plan_by(plan_here, PlanningInputs(job=job, calibration=known, source=source, target=target), progress)


def plan_by(executor: Executor, work: PlanningInputs, progress: Progress = lambda _: None) -> PlanningResult:
    """The plan of a job whose rank classes are planned by this executor."""
    refuse_unplannable(work.job)
    began = time.perf_counter()
    classes = executor(work, rank_classes(Mesh.of(work.job.parallel)), progress)
    rank_traces = [trace for each in classes for trace in each.traces]
    # Trace and replay add up the seconds of all processes; the total is by the clock.
    seconds = Seconds(
        trace=sum(each.trace.seconds for each in rank_traces),
        replay=sum(each.replay_seconds for each in classes),
        total=time.perf_counter() - began,
    )
    judgements = [judgement for each in classes for judgement in each.judgements]
    found = assemble_plan(work.job, rank_traces, judgements, work.calibration, seconds)
    return found if all(each.whole for each in classes) else replace(found, traces=(), timelines=())


def plan_here(work: PlanningInputs, classes: Sequence[RankClass], progress: Progress) -> Sequence[PlannedClass]:
    """The executor that plans one class after the other in this process."""
    return [plan_class(work, each, progress) for each in classes]


def plan_class(work: PlanningInputs, rank_class: RankClass, progress: Progress = lambda _: None) -> PlannedClass:
    """Trace and judge the representative of a class, and that of each further part of it."""
    rank_traces: list[RankTrace] = []
    judgements: list[tuple[RankClassStatement, Timeline]] = []
    replay_seconds = 0.0
    for each in trace_class(work.job, rank_class, progress, work.source, work.target):
        began = time.perf_counter()
        judged = judge_trace(work.job, each, work.calibration)
        replay_seconds += time.perf_counter() - began
        judgements.append((judged.statement, judged.timeline))
        rank_traces.append(judged.rank_trace)
    return PlannedClass(tuple(rank_traces), tuple(judgements), replay_seconds)


def refuse_unplannable(job: Job) -> None:
    """Raises SpecError or AllocatorConfError for what can be said before the work: no GPU, a setting not modelled."""
    if job.cluster.gpu.total_bytes == 0:
        raise SpecError(
            "the job names no GPU, so nothing can be said of whether it fits",
            allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}",
            place="cluster.gpu",
        )
    Rules.from_conf(job.allocator.conf)


def trace_job(
    job: Job, progress: Progress = lambda _: None, source: TraceSource = USUAL_SOURCE, target: str = ""
) -> tuple[RankTrace, ...]:
    """One trace for each rank class; where shards do not divide, one for each part of the class besides."""
    classes = rank_classes(Mesh.of(job.parallel))
    return tuple(trace for each in classes for trace in trace_class(job, each, progress, source, target))


def trace_class(
    job: Job,
    rank_class: RankClass,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
    target: str = "",
) -> Iterator[RankTrace]:
    """The trace of one rank class, or of each of its parts."""
    compiles = job.train.compile and not _is_planned_as_eager(job)
    progress(f"tracing ranks {rank_class.ranks}{', compiling' if compiles else ''}")
    trace = source.trace_rank(job, rank_class.representative, target)
    for part in parts_of_class(job, rank_class, trace):
        if part.representative != rank_class.representative:
            progress(f"tracing ranks {part.ranks}, which do not do the same as rank {rank_class.representative}")
            trace = source.trace_rank(job, part.representative, target)
        yield RankTrace(part, trace)


def parts_of_class(job: Job, rank_class: RankClass, trace: Trace) -> tuple[RankClass, ...]:
    """The classes into which one falls by what its representative did: each but the first has to be traced as well."""
    mesh = Mesh.of(job.parallel)
    parts = parts_of(mesh, rank_class, trace.sharded_dims, trace.parts)
    return set_first_apart(mesh, parts) if first_rank_differs(job.train) else parts


def assign_ranks(job: Job, by_representative: Mapping[int, Trace]) -> tuple[RankTrace, ...]:
    """Traces already made, with the ranks for which each speaks. Raises KeyError if one is missing."""
    return tuple(
        RankTrace(part, by_representative[part.representative])
        for each in rank_classes(Mesh.of(job.parallel))
        for part in parts_of_class(job, each, by_representative[each.representative])
    )


def judge_traces(
    job: Job,
    rank_traces: Sequence[RankTrace],
    calibration: Calibration | None = None,
) -> PlanningResult:
    """The plan that follows from traces already made: replay, verdict, identity."""
    began = time.perf_counter()
    known = measured_calibration() if calibration is None else calibration
    judged = [judge_trace(job, each, known) for each in rank_traces]
    replayed = time.perf_counter() - began
    traced = sum(each.trace.seconds for each in rank_traces)
    seconds = Seconds(trace=traced, replay=replayed, total=traced + replayed)
    pairs = [(each.statement, each.timeline) for each in judged]
    return assemble_plan(job, [each.rank_trace for each in judged], pairs, known, seconds)


def assemble_plan(
    job: Job,
    rank_traces: Sequence[RankTrace],
    judgements: Sequence[tuple[RankClassStatement, Timeline]],
    calibration: Calibration,
    seconds: Seconds,
) -> PlanningResult:
    """The plan that consists of these judgements, one for each trace."""
    provenance = identity.provenance_of(calibration)
    trace_id = identity.trace_id_of(job)
    finished = Plan(
        plan_id=identity.plan_id(trace_id, provenance),
        trace_id=trace_id,
        calibrated=_apply_calibration(calibration, job).calibrated,
        job=bundle.bundle(job),
        rank_classes=tuple(statement for statement, _ in judgements),
        host=state_hosts(job, [traced_host(job, each) for each in rank_traces]),
        provenance=provenance,
        seconds=Seconds(trace=round(seconds.trace, 3), replay=round(seconds.replay, 3), total=round(seconds.total, 3)),
    )
    host = finished.host.assumptions if finished.host is not None and job.cluster.host_memory else ()
    notes = (*_notes(job, rank_traces), *host, *_apply_calibration(calibration, job).sentences)
    return PlanningResult(finished, tuple(rank_traces), tuple(timeline for _, timeline in judgements), notes)


def traced_host(job: Job, each: RankTrace) -> TracedHost:
    """What a trace says of the host."""
    events, engine = each.trace.host, each.trace.engine
    if engine is not None and job.post_training is not None:
        events = with_sleeping_weights(events, engine, job.post_training.rollout)
    return TracedHost(each.rank_class.representative, each.rank_class.ranks, events, each.trace.host_assumed)


@dataclass(frozen=True, slots=True)
class JudgedTrace:
    """What follows from a trace. The events of `rank_trace` are those of the timeline: what repeats is in both until it
    changes nothing any more."""

    rank_trace: RankTrace
    statement: RankClassStatement
    timeline: Timeline


def judge_trace(job: Job, rank_trace: RankTrace, calibration: Calibration) -> JudgedTrace:
    """One trace's replay and what follows from it."""
    with garbage_collection.pause_collection():
        return _judge(job, rank_trace, calibration)


def _judge(job: Job, rank_trace: RankTrace, calibration: Calibration) -> JudgedTrace:
    if rank_trace.trace.engine is not None:
        return _judge_shared(job, rank_trace, rank_trace.trace.engine, calibration)
    rules = Rules.from_conf(job.allocator.conf)
    held = _apply_calibration(calibration, job).correct_outside(outside_of(job))
    capacity = job.cluster.gpu.total_bytes - job.cluster.held_by_others_bytes
    trace, room = rank_trace.trace, max(capacity - held.total_bytes, 0)
    run = replay_run(job, trace, room) if job.train.lengths is not None else None
    trace = run.worst_step if run is not None else trace
    capped = replay_until_settled(trace.events, trace.repeats, rules, room, device_bytes=job.cluster.gpu.total_bytes)
    # What it would have taken is asked for only where it does not get it.
    runs_out = capped.timeline.out_of_memory is not None
    found = replay_until_settled(trace.events, trace.repeats, rules) if runs_out else capped

    interval_of = _interval_of(job, trace, held, calibration)
    statement = state_rank_class(
        representative=rank_trace.rank_class.representative,
        ranks=str(rank_trace.rank_class.ranks),
        coordinates=rank_trace.rank_class.coordinates,
        events=found.events,
        unlimited=found.timeline,
        capped=capped.timeline,
        outside=OutsideAllocator(cuda_context_bytes=held.cuda_context_bytes, nccl_bytes=held.nccl_bytes),
        interval=interval_of,
        capacity_bytes=capacity,
    )
    if run is not None:
        statement = run.judge(statement, interval_of)
    moments = growth_moments(found.events, found.repeats, statement, rules)
    statement = replace(statement, moments=(*statement.moments, *evaluation_moments(job, found, statement), *moments))
    if _is_planned_as_eager(job) and statement.verdict is Verdict.EXCEEDS:
        statement = replace(statement, verdict=Verdict.TIGHT)
    settled = replace(trace, events=found.events, repeats=found.repeats)
    return JudgedTrace(replace(rank_trace, trace=settled), statement, found.timeline)


def _interval_of(
    job: Job, trace: Trace, held: OutsideEstimate, calibration: Calibration
) -> Callable[[int], tuple[int, int]]:
    """The interval of device bytes of a process that holds this outside of its allocator."""
    return lambda device_bytes: interval(
        device_bytes,
        held,
        calibration,
        unknown_workspaces=bool(trace.unknown_workspaces),
        workspace_margin_bytes=trace.workspace_margin_bytes,
        approximations=approximations_of(job, trace.unknown_workspaces),
        gpu=job.cluster.gpu.name,
        torch=job.software.torch,
    )


def _judge_shared(job: Job, rank_trace: RankTrace, engine: EngineFigures, calibration: Calibration) -> JudgedTrace:
    """As `_judge`, of a trainer that shares its GPU with an engine."""
    trace, events = rank_trace.trace, rank_trace.trace.written_out()
    held = _apply_calibration(calibration, job).correct_outside(outside_of(job))
    said = _interval_of(job, trace, held, calibration)
    found = post_training.SharedGpuJudge.of(job, events, engine, held, communicators_of(job), said).judge()
    alone = state_rank_class(
        representative=rank_trace.rank_class.representative,
        ranks=str(rank_trace.rank_class.ranks),
        coordinates=rank_trace.rank_class.coordinates,
        events=events,
        unlimited=found.timeline,
        capped=found.timeline,
        outside=OutsideAllocator(cuda_context_bytes=held.cuda_context_bytes, nccl_bytes=held.nccl_bytes),
        interval=said,
        capacity_bytes=job.cluster.gpu.total_bytes - job.cluster.held_by_others_bytes,
    )
    rows = found.shared.phases
    together = (max(row.interval_bytes[0] for row in rows), max(row.interval_bytes[1] for row in rows))
    peak = replace(alone.peak, device_bytes=found.shared.fullest().total_bytes, interval_bytes=together)
    statement = replace(
        alone, peak=peak, verdict=found.verdict, cache_releases=found.cache_releases, shared=found.shared
    )
    written = replace(rank_trace, trace=replace(trace, events=events, repeats=()))
    return JudgedTrace(written, statement, found.timeline)


def _is_planned_as_eager(job: Job) -> bool:
    return job.train.compile is not None and job.train.compile.planned_as == "eager"


def _notes(job: Job, rank_traces: Sequence[RankTrace]) -> tuple[str, ...]:
    notes = list(outside_of(job).provenance)
    unknown = unknown_workspaces_of(each.trace for each in rank_traces)
    notes += describe_unknown_workspaces(unknown)
    notes += sorted({sentence for each in rank_traces for sentence in each.trace.counted_workspaces})
    notes += assumptions_of(job)
    notes += _describe_engine(rank_traces, job)
    if approximated := approximations_of(job, unknown):
        said = "; ".join(each.sentence for each in approximated)
        notes.append(f"Approximated, and the interval is wider for it: {said}.")
    if job.train.compile is not None:
        notes.append(_describe_compiling(job.train.compile, rank_traces))
    traced = ".".join(identity.software()["torch"].split(".")[:2])
    if job.software.torch != traced:
        notes.append(f"The job runs torch {job.software.torch}; it was traced with torch {traced}.")
    return tuple(notes)


def unknown_workspaces_of(traces: Iterable[Trace]) -> list[str]:
    """The kernels of any of the traces whose scratch memory nobody knows, each once, in order."""
    return sorted({name for each in traces for name in each.unknown_workspaces})


def describe_unknown_workspaces(names: Sequence[str]) -> list[str]:
    """The note on them for people; none without any."""
    return [f"Workspaces of unknown size, not counted: {'; '.join(names)}."] if names else []


def _describe_engine(rank_traces: Sequence[RankTrace], job: Job) -> list[str]:
    figures = next((each.trace.engine for each in rank_traces if each.trace.engine is not None), None)
    if figures is None:
        return []
    return [f"Taken for the engine: {'; '.join(post_training.assumptions_of(job, figures))}."]


def _describe_compiling(compiled: Compile, rank_traces: Sequence[RankTrace]) -> str:
    if compiled.planned_as == "eager":
        return (
            f"Planned as the eager step, as the job says: what it takes compiled ({', '.join(compiled.scope)}) is not"
            " known, and nothing is refused for what the eager step takes."
        )
    traced = ".".join(identity.software()["torch"].split(".")[:2])
    said = f"Compiled on paper by {compiled.backend} of torch {traced}: {', '.join(compiled.scope)}."
    assumed = sorted({sentence for each in rank_traces for sentence in each.trace.assumed})
    return f"{said} Assumed where a GPU would have been timed: {'; '.join(assumed)}." if assumed else said


def _apply_calibration(calibration: Calibration, job: Job) -> AppliedCorrection:
    return calibration.applied_to(job.cluster.gpu.name, job.software.torch)


def outside_of(job: Job) -> OutsideEstimate:
    """What lives outside the allocator, before any calibration: a communicator for each axis of more than one."""
    return outside(job.cluster.gpu, job.software, communicators_of(job))


def communicators_of(job: Job) -> list[int]:
    """The sizes of the groups of which a rank is a member."""
    return [degree for degree in Mesh.of(job.parallel).degrees if degree > 1]
