"""Makes a plan: runs or traces ranks, judges what they did, and states what every rank and node will hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from planner.allocator.timeline import Timeline
from planner.events import Event
from planner.job.named_gpus import refuse_ranks_on_slice
from planner.job.schema import Job
from planner.planning.branches import try_branches
from planner.planning.inputs import ProgramInputs, inputs_of_job
from planner.planning.judging import JudgedRank, RankTrace, judge_devices, share_of_class, told_on
from planner.planning.planned_classes import PlanningInputs, Progress, plan_classes, refuse_unplannable
from planner.planning.program_ranks import RankShare, share_ranks, unite_alike
from planner.planning.run_ranks import HeardOfRank, order_of, run_ranks
from planner.planning.stating import state_plan
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import BranchStatement, Plan, RankClassStatement, Seconds
from planner.report.verdict_text import deciding
from planner.runtime.garbage_collection import pause_collection
from planner.tracing.program import rank_process
from planner.tracing.program.rank_orders import RankRun
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import measured_calibration
from planner.truth.plan_comparison import Comparison, class_of, is_of_cpu, run_compare


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """A plan with what it was made from: the runs of ranks, and what was judged of them, in the order of the plan's
    rank classes; nothing of a plan that was made in several processes without `keep_traces`."""

    plan: Plan
    work: ProgramInputs
    runs: Sequence[RankRun]
    judged: Sequence[JudgedRank]

    @property
    def job(self) -> Job:
        """The spec that was planned."""
        assert self.work.job is not None
        return self.work.job

    @property
    def calibration(self) -> Calibration:
        return self.work.calibration

    @property
    def traces(self) -> tuple[RankTrace, ...]:
        return tuple(one.rank_trace for one in self.judged)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        return tuple(one.timeline for one in self.judged)

    def events_of(self, rank: int, *, on_cpu: bool = False) -> tuple[Event, ...]:
        """What was predicted for a rank, by its class, or what it does on a CPU, where memory is free when the host
        gives it up; nothing for a rank that the job does not have."""
        judged = next((one for one in self.judged if rank in one.share.rank_class.ranks), None)
        if judged is None:
            return ()
        return (judged.share.run.trace if on_cpu else judged.trace).written_out()

    def class_to_draw(self, rank: int | None) -> tuple[RankClassStatement, Sequence[Event]]:
        """The rank class of a rank, or the one that decides, and what it did until repeating it changes nothing more.
        Raises PlannerError for a rank that there is not."""
        statement = deciding(self.plan) if rank is None else class_of(self.plan, rank)
        return statement, self.traces[self.plan.rank_classes.index(statement)].trace.events


def plan_job(
    job: Job,
    calibration: Calibration | None = None,
    *,
    source: TraceSource = USUAL_SOURCE,
    processes: int = 1,
    keep_traces: bool = True,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a job, by the program that its spec is; with its traces and timelines unless it was made in several
    processes without `keep_traces`.

    `calibration`: by default what was measured; `source` gives the traces. Raises SpecError, TraceError or
    AllocatorConfError for what cannot be planned.
    """
    refuse_unplannable(job)
    began = time.perf_counter()
    known = measured_calibration() if calibration is None else calibration
    if job.trainer is not None:
        from planner.planning.trainer_program import started_trainer  # which other jobs do not need

        with started_trainer(job, known, source.isolation) as work:
            return plan_program(work, progress)
    work = inputs_of_job(job, known)
    asked = PlanningInputs(work=work, source=source, processes=processes, keep_traces=keep_traces)
    classes = plan_classes(asked, progress)
    judged = [one for planned in classes for one in planned.judged]
    # Trace and replay add up the seconds of all processes; the total is by the clock.
    replay_seconds = sum(planned.replay_seconds for planned in classes)
    result = _state(work, [one.share for one in judged], judged, replay_seconds, time.perf_counter() - began)
    return result if all(planned.whole for planned in classes) else replace(result, runs=(), judged=())


def compare_job(
    job: Job, measured: Path, case: str = "", rank: int | None = None, progress: Progress = lambda _: None
) -> list[Comparison]:
    """The job's plan beside a snapshot, or the measurements of a file."""
    on_cpu = is_of_cpu(measured)
    result = plan_job(job, progress=progress)
    events_of = partial(result.events_of, on_cpu=on_cpu)
    return run_compare(result.plan, measured, case=case, rank=rank, events_of=events_of)


def plan_from_traces(
    job: Job, rank_traces: Sequence[RankTrace], calibration: Calibration | None = None
) -> PlanningResult:
    """The plan that follows from traces already made: replay, verdict, identity."""
    began = time.perf_counter()
    work = inputs_of_job(job, measured_calibration() if calibration is None else calibration)
    ranks = [share_of_class(job, rank_trace) for rank_trace in rank_traces]
    judged = [judgement for share in ranks for judgement in judge_devices(work, share)]
    replayed = time.perf_counter() - began
    return _state(work, ranks, judged, replayed, replayed + sum(share.run.trace.seconds for share in ranks))


def plan_program(
    work: ProgramInputs, progress: Progress = lambda _: None, heard: HeardOfRank = lambda *_: None
) -> PlanningResult:
    """The plan of a program, by running some of its ranks. `heard` gets what they print.

    Raises SpecError for ranks that it does not have, ProgramError and TraceError for a rank that cannot be run.
    """
    began = time.perf_counter()
    refuse_ranks_on_slice(work.gpu.name, work.line.world_size, "--gpu")
    work, runs = run_ranks(work, progress, heard)
    progress("replaying")
    replayed = time.perf_counter()
    ranks = share_ranks(runs, work.line.world_size)
    with pause_collection():
        told = partial(told_on, work.gpu, work.line.processes_per_node)
        alike = unite_alike(ranks, lambda trace: trace.as_told(told(trace)))
    judged = [judgement for share in alike for judgement in judge_devices(work, share)]
    judged.sort(key=lambda judgement: -judgement.statement.peak.device_bytes)
    replay_seconds = time.perf_counter() - replayed
    if runs[0].branches:
        progress("trying branches the other way")
    branches = try_branches(
        runs[0],
        order_of(work, runs[0].rank),
        lambda order: rank_process.run_rank(order, replace(work.limits, seconds=order.seconds), walled=work.walled),
        lambda run: max(
            (judged.statement for judged in judge_devices(work, share_ranks([run], 1)[0])),
            key=lambda statement: statement.peak.device_bytes,
        ),
    )
    return _state(work, ranks, judged, replay_seconds, time.perf_counter() - began, branches)


def _state(
    work: ProgramInputs,
    ranks: Sequence[RankShare],
    judged: Sequence[JudgedRank],
    replay_seconds: float,
    total_seconds: float,
    branches: tuple[BranchStatement, ...] = (),
) -> PlanningResult:
    runs = [share.run for share in ranks]
    seconds = Seconds(
        trace=round(sum(run.trace.seconds for run in runs), 3),
        replay=round(replay_seconds, 3),
        total=round(total_seconds, 3),
    )
    return PlanningResult(state_plan(work, ranks, judged, branches, seconds), work, runs, judged)
