"""Plans a job: traces its rank classes, judges them, and states the plan; also what it takes without torch.compile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.host.nodes import TracedHost, state_hosts
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.errors import PlannerError, SpecError
from planner.events import Category, Event
from planner.job import loading
from planner.job.layout import Mesh, RankClass, first_rank_differs, parts_of, rank_classes, set_first_apart
from planner.job.schema import Job
from planner.planning import identity
from planner.planning.judging import (
    JudgedTrace,
    RankTrace,
    calibration_of,
    is_planned_as_eager,
    judge_trace,
    special_parts,
)
from planner.planning.memory_pool import state_pool
from planner.planning.notes import another_torch_than, notes_of
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import Plan, RankClassStatement, Seconds, TrainedAdapter, WithoutCompile
from planner.report.verdict_text import deciding
from planner.tracing.rank_trace import Trace
from planner.tracing.rollout import with_sleeping_weights
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.truth.plan_comparison import class_of
from planner.units import show_bytes

Progress = Callable[[str], None]


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
        return next((traced.trace.written_out() for traced in self.traces if rank in traced.rank_class.ranks), ())

    def class_to_draw(self, rank: int | None) -> tuple[RankClassStatement, Sequence[Event]]:
        """The rank class of a rank, or the one that decides, and what it did until repeating it changes nothing more.
        Raises PlannerError for a rank that there is not."""
        statement = deciding(self.plan) if rank is None else class_of(self.plan, rank)
        return statement, self.traces[self.plan.rank_classes.index(statement)].trace.events


def events_without_clock(job: Job, target: str, rank: int) -> tuple[Event, ...]:
    """What a rank does: memory is free when the host gives it up, as on a CPU."""
    return USUAL_SOURCE.trace_rank(job, rank, target).written_out()


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

    parts: tuple[JudgedTrace, ...]
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
    judged = [part for planned in classes for part in planned.parts]
    # Trace and replay add up the seconds of all processes; the total is by the clock.
    replay_seconds = sum(planned.replay_seconds for planned in classes)
    result = _assemble(work.job, judged, work.calibration, replay_seconds, time.perf_counter() - began)
    return result if all(planned.whole for planned in classes) else replace(result, traces=(), timelines=())


def plan_here(work: PlanningInputs, classes: Sequence[RankClass], progress: Progress) -> Sequence[PlannedClass]:
    """The executor that plans one class after the other in this process."""
    return [plan_class(work, rank_class, progress) for rank_class in classes]


def plan_class(work: PlanningInputs, rank_class: RankClass, progress: Progress = lambda _: None) -> PlannedClass:
    """Trace and judge the representative of a class, and that of each further part of it."""
    parts: list[JudgedTrace] = []
    replay_seconds = 0.0
    for rank_trace in trace_class(work.job, rank_class, progress, work.source, work.target):
        began = time.perf_counter()
        parts.append(judge_trace(work.job, rank_trace, work.calibration))
        replay_seconds += time.perf_counter() - began
    return PlannedClass(tuple(parts), replay_seconds)


def refuse_unplannable(job: Job) -> None:
    """Raises SpecError or AllocatorConfError for what can be said before the work: no GPU, a setting not modelled."""
    if job.cluster.gpu.total_bytes == 0:
        raise SpecError(
            "the job names no GPU, so nothing can be said of whether it fits",
            allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}",
            place="cluster.gpu",
        )
    Rules.from_conf(job.allocator.conf)


def trace_job(job: Job) -> tuple[RankTrace, ...]:
    """One trace for each rank class; where shards do not divide, one for each part of the class besides."""
    classes = rank_classes(Mesh.of(job.parallel))
    return tuple(rank_trace for rank_class in classes for rank_trace in trace_class(job, rank_class))


def trace_class(
    job: Job,
    rank_class: RankClass,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
    target: str = "",
) -> Iterator[RankTrace]:
    """The trace of one rank class, or of each of its parts."""
    compiles = job.train.compile and not is_planned_as_eager(job)
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
        for rank_class in rank_classes(Mesh.of(job.parallel))
        for part in parts_of_class(job, rank_class, by_representative[rank_class.representative])
    )


def judge_traces(job: Job, rank_traces: Sequence[RankTrace], calibration: Calibration | None = None) -> PlanningResult:
    """The plan that follows from traces already made: replay, verdict, identity."""
    began = time.perf_counter()
    known = measured_calibration() if calibration is None else calibration
    judged = [judge_trace(job, rank_trace, known) for rank_trace in rank_traces]
    replayed = time.perf_counter() - began
    traced = sum(rank_trace.trace.seconds for rank_trace in rank_traces)
    return _assemble(job, judged, known, replayed, traced + replayed)


def _assemble(
    job: Job, judged: Sequence[JudgedTrace], calibration: Calibration, replay_seconds: float, total_seconds: float
) -> PlanningResult:
    rank_traces = tuple(part.rank_trace for part in judged)
    provenance = identity.provenance_of(calibration)
    host = state_hosts(job, [traced_host(job, rank_trace) for rank_trace in rank_traces])
    applied = calibration_of(job, calibration)
    whole = Plan(
        plan_id=identity.plan_id_of(job, provenance),
        trace_id=identity.trace_id_of(job),
        calibrated=applied.calibrated,
        job=loading.bundle(job),
        adapter=_state_adapter(job, rank_traces),
        rank_classes=tuple(part.statement for part in judged),
        another_torch=another_torch_than(job.software.torch, special_parts(job)),
        host=host,
        pool=state_pool(job.cluster.gpu.name, [part.statement for part in judged], host, job.cluster.gpus_per_node),
        provenance=provenance,
        seconds=Seconds(
            trace=round(sum(rank_trace.trace.seconds for rank_trace in rank_traces), 3),
            replay=round(replay_seconds, 3),
            total=round(total_seconds, 3),
        ),
    )
    of_hosts = host.assumptions if job.cluster.host_memory else ()
    sentences = notes_of(job, [rank_trace.trace for rank_trace in rank_traces], whole.rank_classes)
    notes = (*sentences, *of_hosts, *applied.sentences)
    return PlanningResult(whole, rank_traces, tuple(part.timeline for part in judged), notes)


def _state_adapter(job: Job, rank_traces: Sequence[RankTrace]) -> TrainedAdapter | None:
    adapted = next((part.trace.adapted for part in rank_traces if part.trace.adapted), {})
    if (adapter := job.model.adapter) is None or not adapted:
        return None
    return TrainedAdapter(kind=adapter.kind, rank=adapter.r, modules=tuple(adapted), parameters=sum(adapted.values()))


def traced_host(job: Job, rank_trace: RankTrace) -> TracedHost:
    """What a trace says of the host."""
    rank_class, trace = rank_trace.rank_class, rank_trace.trace
    events = trace.host
    if trace.engine is not None and job.post_training is not None:
        events = with_sleeping_weights(events, trace.engine, job.post_training.rollout)
    return TracedHost(rank_class.representative, rank_class.ranks, events, trace.host_assumed)


_SHOWN_SHARE = 0.005
"""Of the peak: what differs by less is not named."""
_WORDS = {Category.ACTIVATION: "saved activations", Category.TEMPORARY: "temporaries that fusing avoids"}


def add_eager(
    result: PlanningResult,
    job: Job,
    calibration: Calibration,
    source: TraceSource,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a compiled job with what the eager one takes, of the ranks that take most; others as they are."""
    if job.train.compile is None or is_planned_as_eager(job):
        return result
    compiled = max(result.plan.rank_classes, key=lambda rank_class: rank_class.peak.device_bytes)
    progress(f"tracing ranks {compiled.ranks} without torch.compile")
    eager_job = replace(job, train=replace(job.train, compile=None))
    rank = compiled.representative
    rank_class = next(known for known in rank_classes(Mesh.of(job.parallel)) if rank in known.ranks)
    try:
        trace = source.trace_rank(eager_job, rank)
        eager = judge_trace(eager_job, RankTrace(rank_class, trace), calibration).statement
    except PlannerError as error:
        sentence = f"Without torch.compile the step cannot be traced: {error.problem}."
        without = WithoutCompile(ranks=compiled.ranks, device_bytes=None, more_at_peak={}, sentence=sentence)
    else:
        without = _compare(compiled, eager)
    notes = (*result.notes, without.sentence)
    return replace(result, plan=replace(result.plan, without_compile=without), notes=notes)


def _compare(compiled: RankClassStatement, eager: RankClassStatement) -> WithoutCompile:
    differences = {name: eager.at_peak.get(name, 0) - compiled.at_peak.get(name, 0) for name in Category}
    differences = {category: size for category, size in differences.items() if size}
    more = eager.peak.device_bytes - compiled.peak.device_bytes
    sentence = (
        f"Without torch.compile ranks {compiled.ranks} would take {show_bytes(eager.peak.device_bytes)}, "
        f"{show_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    )
    parts = ", ".join(
        f"{_WORDS.get(category, category.value.replace('_', ' '))} {'+' if size > 0 else '-'}{show_bytes(abs(size))}"
        for category, size in sorted(differences.items(), key=lambda pair: -abs(pair[1]))
        if abs(size) >= eager.peak.allocated_bytes * _SHOWN_SHARE
    )
    return WithoutCompile(
        ranks=compiled.ranks,
        device_bytes=eager.peak.device_bytes,
        more_at_peak=differences,
        sentence=f"{sentence}; at the peak: {parts}." if parts else f"{sentence}.",
    )
