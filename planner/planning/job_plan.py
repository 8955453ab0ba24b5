"""Plans a job: traces and judges its rank classes, and states what every rank and node will hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.allocator.host.nodes import TracedHost, state_hosts
from planner.allocator.host.statement import HostStatement
from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.job import loading
from planner.job.overhead import outside_of
from planner.job.schema import Job
from planner.planning import identity
from planner.planning.judging import JudgedTrace, RankTrace, calibration_of, judge_trace, special_parts
from planner.planning.memory_pool import state_pool
from planner.planning.notes import another_torch_than, interval_sources, notes_of
from planner.planning.planned_classes import PlanningInputs, Progress, plan_classes, refuse_unplannable
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import Plan, RankClassStatement, Seconds, TrainedAdapter
from planner.report.verdict_text import deciding
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.truth.plan_comparison import class_of


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """A plan with what it was made from."""

    plan: Plan
    job: Job
    calibration: Calibration
    traces: tuple[RankTrace, ...]
    timelines: tuple[Timeline, ...]

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


def plan_job(
    job: Job,
    calibration: Calibration | None = None,
    *,
    source: TraceSource = USUAL_SOURCE,
    target: str = "",
    processes: int = 1,
    keep_traces: bool = True,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a job, by the program that its spec is; with its traces and timelines unless it was made in several
    processes without `keep_traces`.

    `calibration`: by default what was measured; `source` gives the traces; `target` says whose kernels are traced (by
    default the GPU's). Raises SpecError, TraceError or AllocatorConfError for what cannot be planned.
    """
    refuse_unplannable(job)
    began = time.perf_counter()
    known = measured_calibration() if calibration is None else calibration
    if job.trainer is not None:
        return _plan_trainer(job, known, source, progress)
    work = PlanningInputs(
        job=job, calibration=known, source=source, target=target, processes=processes, keep_traces=keep_traces
    )
    classes = plan_classes(work, progress)
    judged = [part for planned in classes for part in planned.parts]
    # Trace and replay add up the seconds of all processes; the total is by the clock.
    replay_seconds = sum(planned.replay_seconds for planned in classes)
    result = _assemble(job, judged, known, replay_seconds, time.perf_counter() - began)
    return result if all(planned.whole for planned in classes) else replace(result, traces=(), timelines=())


def _plan_trainer(job: Job, calibration: Calibration, source: TraceSource, progress: Progress) -> PlanningResult:
    """By running its program; the classes of its ranks are what they were seen to do."""
    from planner.planning.trainer_program import judge_trainer  # which other jobs do not need

    judged = judge_trainer(job, calibration, source.isolation, progress)
    provenance = judged.plan.provenance
    plan = replace(
        judged.plan,
        plan_id=identity.plan_id_of(job, provenance),
        trace_id=identity.trace_id_of(job),
        job=loading.bundle(job),
    )
    shares = judged.shares
    return PlanningResult(
        plan,
        job,
        calibration,
        tuple(share.judged.rank_trace for share in shares),
        tuple(share.judged.timeline for share in shares),
    )


def plan_from_traces(
    job: Job, rank_traces: Sequence[RankTrace], calibration: Calibration | None = None
) -> PlanningResult:
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
    host = state_job_hosts(job, rank_traces)
    applied, of_hosts = calibration_of(job, calibration), host.assumptions if job.cluster.host_memory else ()
    unreplayed = dict.fromkeys(part.unreplayed for part in judged if part.unreplayed)
    statements = tuple(part.statement for part in judged)
    whole = Plan(
        plan_id=identity.plan_id_of(job, provenance),
        trace_id=identity.trace_id_of(job),
        calibrated=applied.calibrated,
        job=loading.bundle(job),
        gpu=job.cluster.gpu.name or job.cluster.gpu.arch,
        nodes=job.cluster.nodes,
        gpus_per_node=job.cluster.gpus_per_node,
        allocator_conf=job.allocator.conf,
        adapter=_state_adapter(job, rank_traces),
        rank_classes=statements,
        another_torch=another_torch_than(job.software.torch, special_parts(job)),
        host=host,
        pool=state_pool(job.cluster.gpu.name, statements, host, job.cluster.gpus_per_node),
        provenance=provenance,
        notes=(
            *notes_of(job, [rank_trace.trace for rank_trace in rank_traces], statements),
            *(f"{clause[0].upper()}{clause[1:]}." for clause in unreplayed),
            *of_hosts,
        ),
        sources=(*outside_of(job).provenance, *interval_sources(statements), *applied.sentences),
        seconds=Seconds(
            trace=round(sum(rank_trace.trace.seconds for rank_trace in rank_traces), 3),
            replay=round(replay_seconds, 3),
            total=round(total_seconds, 3),
        ),
    )
    return PlanningResult(whole, job, calibration, rank_traces, tuple(part.timeline for part in judged))


def _state_adapter(job: Job, rank_traces: Sequence[RankTrace]) -> TrainedAdapter | None:
    adapted = next((part.trace.adapted for part in rank_traces if part.trace.adapted), {})
    if (adapter := job.model.adapter) is None or not adapted:
        return None
    return TrainedAdapter(kind=adapter.kind, rank=adapter.r, modules=tuple(adapted), parameters=sum(adapted.values()))


def state_job_hosts(job: Job, rank_traces: Sequence[RankTrace]) -> HostStatement:
    """What every node of the job holds at least on the host. Raises AllocatorConfError for wrong settings of pinned
    memory."""
    return state_hosts(
        [
            TracedHost(rank_trace.rank_class.ranks, rank_trace.trace.host, rank_trace.trace.host_assumed)
            for rank_trace in rank_traces
        ],
        ranks_per_node=job.cluster.gpus_per_node,
        capacity_bytes=job.cluster.host_memory,
        conf=job.allocator.conf,
        loader=job.train.data_loader,
    )
