"""The whole answer to a job, for the command line and the service: its plan, and advice where it does not fit."""

from __future__ import annotations

import dataclasses
import time

from planner import planning, side_by_side
from planner.advice import advise
from planner.calibration.interval import Calibration
from planner.planning import Planned, Progress
from planner.report.statement import Verdict
from planner.spec.job import Job
from planner.tracing.isolated import USUAL_LIMITS, Limits


def answer(
    job: Job,
    calibration: Calibration | None = None,
    *,
    with_advice: bool = True,
    progress: Progress = lambda _: None,
    limits: Limits = USUAL_LIMITS,
    processes: int = 1,
    keep_traces: bool = True,
) -> Planned:
    """Plan the job and, if it exceeds its GPUs, say what would make it fit.

    `limits` are those of a factory's process. At most so many `processes` share the rank classes of a large job; its
    traces and timelines are then there only if they are to be kept. Raises SpecError, TraceError or
    AllocatorConfError for what cannot be planned.
    """
    found = side_by_side.planned(job, calibration, progress, limits, processes=processes, keep_traces=keep_traces)
    return advised(found, job, calibration, progress=progress, limits=limits) if with_advice else found


def advised(
    found: Planned,
    job: Job,
    calibration: Calibration | None = None,
    *,
    progress: Progress = lambda _: None,
    limits: Limits = USUAL_LIMITS,
) -> Planned:
    """The plan with advice if it exceeds its GPUs; `job` and `calibration` are those that it was made from."""
    if found.plan.verdict is not Verdict.EXCEEDS:
        return found
    began = time.perf_counter()
    traces = found.traces or planning.traces(job, progress, limits)
    advice = advise(job, traces, calibration, progress, limits)
    total = found.plan.seconds.total + time.perf_counter() - began
    seconds = dataclasses.replace(found.plan.seconds, total=round(total, 3))
    return dataclasses.replace(found, plan=dataclasses.replace(found.plan, advice=advice, seconds=seconds))
