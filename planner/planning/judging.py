"""Judges what a rank did: its events through the allocator, what lives outside it, and whether that fits.

A trace that was made before is judged anew for another GPU, another calibration or other allocator settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.allocator.rules import Rules
from planner.allocator.settled import replay_until_settled
from planner.allocator.timeline import Timeline
from planner.calibration.approximations import approximations_of
from planner.calibration.correction import AppliedCorrection
from planner.calibration.interval import Calibration, interval
from planner.events import Event
from planner.job.schema import Job
from planner.layout.rank_classes import RankClass
from planner.overhead.estimate import OutsideEstimate
from planner.overhead.outside_of_job import communicators_of, outside_of
from planner.planning import post_training
from planner.planning.evaluation_moments import evaluation_moments
from planner.planning.kept_by_mistake import growth_moments
from planner.planning.long_runs import replay_run
from planner.report.rank_class import state_rank_class
from planner.report.statement import OutsideAllocator, RankClassStatement, Verdict
from planner.rollout.engine_figures import EngineFigures
from planner.tracing import garbage_collection
from planner.tracing.traced import Trace


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank class and what its representative did."""

    rank_class: RankClass
    trace: Trace


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
    held = calibration_of(job, calibration).correct_outside(outside_of(job))
    trace, room = rank_trace.trace, max(job.cluster.capacity_bytes - held.total_bytes, 0)
    run = replay_run(job, trace, room) if job.train.lengths is not None else None
    trace = run.worst_step if run is not None else trace
    capped = replay_until_settled(trace.events, trace.repeats, rules, room, device_bytes=job.cluster.gpu.total_bytes)
    # What it would have taken is asked for only where it does not get it.
    runs_out = capped.timeline.out_of_memory is not None
    found = replay_until_settled(trace.events, trace.repeats, rules) if runs_out else capped

    interval_of = _interval_of(job, trace, held, calibration)
    statement = _state(job, rank_trace.rank_class, found.events, (found.timeline, capped.timeline), held, interval_of)
    if run is not None:
        statement = run.judge(statement, interval_of)
    moments = growth_moments(found.events, found.repeats, statement, rules)
    statement = replace(statement, moments=(*statement.moments, *evaluation_moments(job, found, statement), *moments))
    if is_planned_as_eager(job) and statement.verdict is Verdict.EXCEEDS:
        statement = replace(statement, verdict=Verdict.TIGHT)
    settled = replace(trace, events=found.events, repeats=found.repeats)
    return JudgedTrace(replace(rank_trace, trace=settled), statement, found.timeline)


def _state(
    job: Job, rank_class: RankClass, events: Sequence[Event], timelines: tuple[Timeline, Timeline],
    held: OutsideEstimate, interval_of: Callable[[int], tuple[int, int]],
) -> RankClassStatement:  # fmt: skip
    """The statement of a class; `timelines` are those without a limit and on the GPU."""
    unlimited, capped = timelines
    return state_rank_class(
        representative=rank_class.representative,
        ranks=str(rank_class.ranks),
        coordinates=rank_class.coordinates,
        events=events,
        unlimited=unlimited,
        capped=capped,
        outside=OutsideAllocator(cuda_context_bytes=held.cuda_context_bytes, nccl_bytes=held.nccl_bytes),
        interval=interval_of,
        capacity_bytes=job.cluster.capacity_bytes,
    )


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
    held = calibration_of(job, calibration).correct_outside(outside_of(job))
    said = _interval_of(job, trace, held, calibration)
    found = post_training.SharedGpuJudge.of(job, events, engine, held, communicators_of(job), said).judge()
    alone = _state(job, rank_trace.rank_class, events, (found.timeline, found.timeline), held, said)
    rows = found.shared.phases
    together = (max(row.interval_bytes[0] for row in rows), max(row.interval_bytes[1] for row in rows))
    peak = replace(alone.peak, device_bytes=found.shared.fullest().total_bytes, interval_bytes=together)
    statement = replace(
        alone, peak=peak, verdict=found.verdict, cache_releases=found.cache_releases, shared=found.shared
    )
    written = replace(rank_trace, trace=replace(trace, events=events, repeats=()))
    return JudgedTrace(written, statement, found.timeline)


def is_planned_as_eager(job: Job) -> bool:
    """Whether the job compiles and asks for the plan of its eager step."""
    return job.train.compile is not None and job.train.compile.planned_as == "eager"


def calibration_of(job: Job, calibration: Calibration) -> AppliedCorrection:
    """What was learnt from measurements on the GPU and torch of the job."""
    return calibration.applied_to(job.cluster.gpu.name, job.software.torch)
