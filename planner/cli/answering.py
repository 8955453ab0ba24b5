"""A job planned for a command, with its progress shown, and what its verdict ends with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, EXCEEDS
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.job.schema import Job
    from planner.planning.pipeline import PlanningResult


def plan_job(
    job: Job, *, with_advice: bool, with_eager: bool = False, keep_traces: bool = False, cached: bool = True
) -> PlanningResult:
    """The answer for a job; raises what planning raises."""
    from planner.planning.child_processes import ChildProcesses, usable
    from planner.planning.trace_cache import TraceCache
    from planner.planning.trace_source import TraceSource
    from planner.searching.answer import plan_and_advise

    with show_progress() as progress:
        progress("loading PyTorch")
        return plan_and_advise(
            job,
            with_advice=with_advice,
            with_eager=with_eager,
            progress=progress,
            executor=ChildProcesses(usable()),
            keep_traces=keep_traces,
            source=TraceSource(cache=TraceCache.of_user() if cached else None),
        )


def exit_code(found: PlanningResult) -> int:
    """What the verdict ends with; a tight one is said on standard error."""
    if found.plan.verdict == "exceeds":
        return EXCEEDS
    if found.plan.verdict == "tight":
        print("warning: it is tight", file=sys.stderr)
    return DONE
