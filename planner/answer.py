"""The whole answer to a job, for the command line and the service: its plan, and advice where it does not fit."""

from __future__ import annotations

import dataclasses
import time

from planner.advice import advise
from planner.calibration.interval import Calibration
from planner.planning import Planned, Progress, planned
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
) -> Planned:
    """Plan the job and, if it exceeds its GPUs, say what would make it fit.

    `limits` are those of a factory's process. Raises SpecError, TraceError or AllocatorConfError for what cannot be
    planned.
    """
    began = time.perf_counter()
    found = planned(job, calibration, progress, limits)
    if found.plan.verdict is not Verdict.EXCEEDS or not with_advice:
        return found
    advice = advise(job, found.traces, calibration, progress, limits)
    seconds = dataclasses.replace(found.plan.seconds, total=round(time.perf_counter() - began, 3))
    return dataclasses.replace(found, plan=dataclasses.replace(found.plan, advice=advice, seconds=seconds))
