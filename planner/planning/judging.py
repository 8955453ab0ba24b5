"""Judges what a rank did: its events through the allocator, what lives outside it, and whether that fits.

A trace that was made before is judged anew for another GPU, another calibration or other allocator settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.allocator.rules import Rules
from planner.allocator.settled import SettledReplay, replay_until_settled
from planner.allocator.timeline import Timeline
from planner.calibration.approximations import Approximation, approximations_of_kernels, approximations_of_spec
from planner.calibration.correction import AppliedCorrection
from planner.calibration.interval import Calibration, interval
from planner.events import Event
from planner.facts.versions import minor_of
from planner.job.schema import Gpu, Job
from planner.layout.rank_classes import RankClass
from planner.overhead.estimate import OutsideEstimate
from planner.overhead.outside_of_job import communicators_of, outside_of
from planner.planning import identity, post_training
from planner.planning.evaluation_moments import evaluation_moments
from planner.planning.kept_by_mistake import growth_moments
from planner.planning.long_runs import replay_run
from planner.report.rank_class import state_rank_class
from planner.report.statement import OutsideAllocator, RankClassStatement, Verdict
from planner.rollout.engine_figures import EngineFigures
from planner.tracing import garbage_collection
from planner.tracing.traced import Trace
from planner.upstream.version_differences import largest_difference


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What a process is judged by, of a spec or of a program: the allocator's rules, what it may use of its GPU, what
    it holds outside the allocator, and how far off such figures are."""

    rules: Rules
    gpu: Gpu
    torch: str
    capacity_bytes: int
    held: OutsideEstimate
    calibration: Calibration
    approximations: tuple[Approximation, ...] = ()
    """Besides those of the kernels of a trace."""

    @property
    def room_bytes(self) -> int:
        """What the allocator may reserve."""
        return max(self.capacity_bytes - self.held.total_bytes, 0)

    def replay(self, trace: Trace) -> tuple[SettledReplay, SettledReplay]:
        """Without a limit, and on the GPU. What it would have taken is asked for only where it does not get it."""
        capped = replay_until_settled(
            trace.events, trace.repeats, self.rules, self.room_bytes, device_bytes=self.gpu.total_bytes
        )
        runs_out = capped.timeline.out_of_memory is not None
        return replay_until_settled(trace.events, trace.repeats, self.rules) if runs_out else capped, capped

    def state(
        self, rank_class: RankClass, events: Sequence[Event], timelines: tuple[Timeline, Timeline], trace: Trace
    ) -> RankClassStatement:
        """The statement of ranks that do as this trace does; `timelines` are those without a limit and on the GPU."""
        unlimited, capped = timelines
        return state_rank_class(
            representative=rank_class.representative,
            ranks=str(rank_class.ranks),
            coordinates=rank_class.coordinates,
            events=events,
            unlimited=unlimited,
            capped=capped,
            outside=OutsideAllocator(cuda_context_bytes=self.held.cuda_context_bytes, nccl_bytes=self.held.nccl_bytes),
            interval=self.interval_of(trace),
            capacity_bytes=self.capacity_bytes,
        )

    def interval_of(self, trace: Trace) -> Callable[[int], tuple[int, int]]:
        """The interval of device bytes of a process that does as this trace does."""
        return lambda device_bytes: interval(
            device_bytes,
            self.held,
            self.calibration,
            unknown_workspaces=bool(trace.unknown_workspaces),
            workspace_margin_bytes=trace.workspace_margin_bytes,
            approximations=(*approximations_of_kernels(trace.unknown_workspaces), *self.approximations),
            gpu=self.gpu.name,
            torch=self.torch,
            torch_difference=torch_difference(self.torch),
        )


def judge_trace(job: Job, rank_trace: RankTrace, calibration: Calibration) -> JudgedTrace:
    """One trace's replay and what follows from it."""
    judge = Judge(
        rules=Rules.from_conf(job.allocator.conf),
        gpu=job.cluster.gpu,
        torch=job.software.torch,
        capacity_bytes=job.cluster.capacity_bytes,
        held=calibration_of(job, calibration).correct_outside(outside_of(job)),
        calibration=calibration,
        approximations=approximations_of_spec(job),
    )
    with garbage_collection.pause_collection():
        if rank_trace.trace.engine is not None:
            return _judge_shared(job, rank_trace, rank_trace.trace.engine, judge)
        return _judge(job, rank_trace, judge)


def _judge(job: Job, rank_trace: RankTrace, judge: Judge) -> JudgedTrace:
    trace = rank_trace.trace
    run = replay_run(job, trace, judge.room_bytes) if job.train.lengths is not None else None
    trace = run.worst_step if run is not None else trace
    found, capped = judge.replay(trace)
    statement = judge.state(rank_trace.rank_class, found.events, (found.timeline, capped.timeline), trace)
    if run is not None:
        statement = run.judge(statement, judge.interval_of(trace))
    moments = growth_moments(found.events, found.repeats, statement, judge.rules)
    statement = replace(statement, moments=(*statement.moments, *evaluation_moments(job, found, statement), *moments))
    if is_planned_as_eager(job) and statement.verdict is Verdict.EXCEEDS:
        statement = replace(statement, verdict=Verdict.TIGHT)
    settled = replace(trace, events=found.events, repeats=found.repeats)
    return JudgedTrace(replace(rank_trace, trace=settled), statement, found.timeline)


def _judge_shared(job: Job, rank_trace: RankTrace, engine: EngineFigures, judge: Judge) -> JudgedTrace:
    """As `_judge`, of a trainer that shares its GPU with an engine."""
    trace, events = rank_trace.trace, rank_trace.trace.written_out()
    said = judge.interval_of(trace)
    found = post_training.SharedGpuJudge.of(job, events, engine, judge.held, communicators_of(job), said).judge()
    alone = judge.state(rank_trace.rank_class, events, (found.timeline, found.timeline), trace)
    rows = found.shared.phases
    together = (max(row.interval_bytes[0] for row in rows), max(row.interval_bytes[1] for row in rows))
    peak = replace(alone.peak, device_bytes=found.shared.fullest().total_bytes, interval_bytes=together)
    statement = replace(
        alone, peak=peak, verdict=found.verdict, cache_releases=found.cache_releases, shared=found.shared
    )
    written = replace(rank_trace, trace=replace(trace, events=events, repeats=()))
    return JudgedTrace(written, statement, found.timeline)


def torch_difference(asked: str) -> float:
    """How far plans of this torch and of the one that makes the plans here were seen to differ, relative."""
    return largest_difference(minor_of(asked), identity.installed_torch())


def is_planned_as_eager(job: Job) -> bool:
    """Whether the job compiles and asks for the plan of its eager step."""
    return job.train.compile is not None and job.train.compile.planned_as == "eager"


def calibration_of(job: Job, calibration: Calibration) -> AppliedCorrection:
    """What was learnt from measurements on the GPU and torch of the job."""
    return calibration.applied_to(job.cluster.gpu.name, job.software.torch)
