"""What the child process of the Python API does."""

from __future__ import annotations

from pathlib import Path

from planner.job.schema import Job
from planner.planning import pipeline
from planner.planning.child_processes import ChildProcesses, usable
from planner.planning.pipeline import PlanningInputs, PlanningResult, plan_by
from planner.planning.trace_source import TraceCache, TraceSource
from planner.report.class_timeline import timelines_of
from planner.report.html_pages import render_page
from planner.report.memory_viz import write_snapshot
from planner.report.statement import Plan
from planner.searching.answer import plan_and_advise
from planner.truth import plan_comparison
from planner.truth.calibration.learning import measured_calibration
from planner.truth.comparison import Comparison


def make_plan(job: Job, advice: bool) -> tuple[Plan, tuple[str, ...]]:
    """The plan, and sentences on where its figures come from."""
    found = plan_and_advise(
        job,
        with_advice=advice,
        with_eager=True,
        executor=ChildProcesses(usable()),
        keep_traces=False,
        source=_source(),
    )
    return found.plan, found.notes


def timeline_page(job: Job) -> str:
    """The page that `planner plan --timeline` writes."""
    result = _with_traces(job)
    events = [rank_trace.trace.events for rank_trace in result.traces]
    return render_page(result.plan, timelines_of(result.plan, events, result.timelines))


def snapshot(job: Job, path: str) -> None:
    """Writes the first rank class for PyTorch's own memory viewer."""
    write_snapshot(Path(path), _with_traces(job).traces[0].trace.events, job.allocator.conf)


def compare_job(job: Job, measured: str, case: str, rank: int | None) -> list[Comparison]:
    """The job's plan, made for the device of the measurements, beside them."""
    path = Path(measured)
    found = pipeline.plan_with_traces(job, target=plan_comparison.target_of(path))
    return plan_comparison.run_compare(found.plan, path, case=case, rank=rank, events_of=found.events_of)


def _with_traces(job: Job) -> PlanningResult:
    work = PlanningInputs(job=job, calibration=measured_calibration(), source=_source())
    return plan_by(pipeline.plan_here, work, lambda _: None)


def _source() -> TraceSource:
    return TraceSource(cache=TraceCache.of_user())
