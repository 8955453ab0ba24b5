"""Plans a job and advises where it does not fit, for the command line and the service."""

from __future__ import annotations

import dataclasses
import time

from planner.calibration.interval import Calibration
from planner.job.schema import Job
from planner.planning.advice import advise
from planner.planning.eager_comparison import add_eager
from planner.planning.pipeline import Executor, PlanningInputs, PlanningResult, Progress, plan_by, plan_here, trace_job
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import Verdict


def plan_and_advise(
    job: Job,
    calibration: Calibration | None = None,
    *,
    executor: Executor = plan_here,
    with_advice: bool = True,
    with_eager: bool = False,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
    keep_traces: bool = True,
) -> PlanningResult:
    """Plan the job and, if it exceeds its GPUs, say what would make it fit.

    `with_eager`: of a compiled job it is said as well what it would take without torch.compile. `source` gives the
    traces. The executor may leave traces and timelines away that need not be kept.
    Raises SpecError, TraceError or AllocatorConfError for what cannot be planned.
    """
    known = Calibration.none() if calibration is None else calibration
    work = PlanningInputs(job=job, calibration=known, source=source, keep_traces=keep_traces)
    found = plan_by(executor, work, progress)
    if with_eager:
        found = add_eager(found, job, known, source, progress)
    return add_advice(found, job, known, progress=progress, source=source) if with_advice else found


def add_advice(
    found: PlanningResult,
    job: Job,
    calibration: Calibration | None = None,
    *,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
) -> PlanningResult:
    """The plan with advice if it exceeds its GPUs; `job` and `calibration` are those that it was made from."""
    if found.plan.verdict is not Verdict.EXCEEDS:
        return found
    began = time.perf_counter()
    traces = found.traces or trace_job(job, progress, source)
    tried: list[str] = []

    def follow(step: str) -> None:
        tried.append(step)
        progress(step)

    advice = advise(job, traces, calibration, follow, source)
    notes = (
        found.notes if advice or not tried else (*found.notes, f"Nothing was found that makes it fit: {_list(tried)}.")
    )
    total = found.plan.seconds.total + time.perf_counter() - began
    seconds = dataclasses.replace(found.plan.seconds, total=round(total, 3))
    plan = dataclasses.replace(found.plan, advice=advice, seconds=seconds)
    return dataclasses.replace(found, plan=plan, notes=notes)


def _list(steps: list[str]) -> str:
    """What was tried, without saying so each time."""
    return "tried " + "; ".join(dict.fromkeys(step.removeprefix("trying ") for step in steps))
