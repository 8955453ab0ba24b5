"""`planner plan`: what every rank will hold, and whether it fits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.job_input import job_of
from planner.cli.options import DONE, EXCEEDS, common_options, job_options, style, tracing_options
from planner.errors import PlannerError
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.job.schema import Job
    from planner.planning.pipeline import PlanningResult


def plan_job(
    job: Job, *, with_advice: bool, with_eager: bool = False, keep_traces: bool = False, cached: bool = True
) -> PlanningResult:
    """The answer for a job; raises what planning raises."""
    from planner.planning.child_processes import ChildProcesses, usable
    from planner.planning.trace_source import TraceCache, TraceSource
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


def add_plan(commands: Commands) -> None:
    """Adds the parser of `planner plan`."""
    parser = commands.add_parser(
        "plan",
        parents=[common_options(), tracing_options(), job_options()],
        help="say what every rank will hold, phase by phase, and whether it fits",
        description="Plans a job: traces its training step without a GPU and says what memory every rank will take. "
        "Ends with 0 if it fits (also tightly), 3 if it does not, 2 if the input is wrong.",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.add_argument("--timeline", type=Path, metavar="FILE.html", help="memory over time, as a page of its own")
    parser.add_argument("--snapshot", type=Path, metavar="FILE.pickle", help="for PyTorch's own memory viewer")
    parser.add_argument("--no-advice", action="store_true", help="do not look for changes that would make it fit")
    parser.set_defaults(run=run_plan, name="plan")


def run_plan(arguments: argparse.Namespace) -> int:
    """`planner plan`: 0 or 3, or what planning raises."""
    from planner.report.plan_text import render
    from planner.report.statement import to_json

    drawn = bool(arguments.timeline or arguments.snapshot)
    found = plan_job(
        job_of(arguments),
        with_advice=not arguments.no_advice,
        with_eager=True,
        keep_traces=drawn,
        cached=not arguments.no_cache,
    )
    if arguments.timeline:
        _write_timeline(found, arguments.timeline)
    if arguments.snapshot:
        _write_snapshot(found, arguments.snapshot)
    if arguments.format == "json":
        print(json.dumps(to_json(found.plan), indent=2))
    else:
        print(render(found.plan, style(), notes=found.notes), end="")
    return exit_code(found)


def _write_timeline(found: PlanningResult, path: Path) -> None:
    from planner.report.class_timeline import ClassTimeline
    from planner.report.html_pages import render_page

    classes = [
        ClassTimeline(statement, each.trace.events, timeline)
        for statement, each, timeline in zip(found.plan.rank_classes, found.traces, found.timelines, strict=True)
    ]
    _write(path, lambda: path.write_text(render_page(found.plan, classes), encoding="utf-8"))


def _write_snapshot(found: PlanningResult, path: Path) -> None:
    from planner.report.memory_viz import write_snapshot

    first = found.traces[0]
    _write(path, lambda: write_snapshot(path, first.trace.events, found.plan.job["allocator"]["conf"]))


def _write(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise PlannerError(f"cannot write: {error.strerror}", place=str(path)) from error
