"""The process in which the Python API has its work done: PyTorch is loaded there once, and not where people work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner import cuda_on_paper
from planner.job.schema import Job
from planner.planning.plan import PlanningResult, plan_job
from planner.planning.preload import PRELOAD, usable
from planner.planning.trace_source import TraceCache, TraceSource
from planner.report.class_timeline import timelines_of
from planner.report.html_pages import render_page
from planner.report.memory_viz import write_snapshot
from planner.report.statement import Plan
from planner.runtime import running
from planner.runtime.fork_server import ForkServer
from planner.searching.plan_advice import plan_with_advice


def call(function: str, *arguments: Any) -> Any:
    """What a function of this module, or `module:function`, returns in a child process that has PyTorch loaded; see
    `planner.runtime.running.call`."""
    name = function if ":" in function else f"{__name__}:{function}"
    return running.call(name, *arguments, server=server())


def server() -> ForkServer:
    """With PyTorch loaded; started by the first who needs it."""
    return cuda_on_paper.lasting_server(PRELOAD)


def make_plan(job: Job, advice: bool) -> Plan:
    """The plan as people are shown it."""
    return plan_with_advice(job, _source(), processes=usable(), advice=advice).plan


def timeline_page(job: Job) -> str:
    """The page that `planner plan --timeline` writes."""
    result = _with_traces(job)
    events = [rank_trace.trace.events for rank_trace in result.traces]
    return render_page(result.plan, timelines_of(result.plan, events, result.timelines))


def snapshot(job: Job, path: str, rank: int | None) -> None:
    """Writes the rank class of a rank, or the one that decides, for PyTorch's own memory viewer."""
    _, events = _with_traces(job).class_to_draw(rank)
    write_snapshot(Path(path), events, job.allocator.conf)


def _with_traces(job: Job) -> PlanningResult:
    return plan_job(job, source=_source())


def _source() -> TraceSource:
    return TraceSource(cache=TraceCache.of_user())
