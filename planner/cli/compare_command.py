"""`planner compare`: what was predicted beside what was measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.job_input import job_of
from planner.cli.job_options import add_set
from planner.cli.options import common_options
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.comparing.plan_comparison import Predicted
    from planner.events import Event


def add(commands: Commands) -> None:
    """Adds the parser of `planner compare`."""
    parser = commands.add_parser(
        "compare",
        parents=[common_options()],
        help="set a plan and a measurement, or a recorded snapshot, side by side",
        description="Sets what was predicted beside what was measured: peaks, phases, categories.",
    )
    parser.add_argument(
        "job",
        metavar="PLAN|RUN|JOB",
        help="what planner plan or planner run --format json wrote, or a job (- for stdin)",
    )
    parser.add_argument(
        "measured", type=Path, metavar="MEASUREMENTS|SNAPSHOT", help="what planner measure wrote, or a snapshot"
    )
    parser.add_argument("--case", default="", help="only measurements of this case")
    parser.add_argument("--rank", type=int, help="only measurements of this rank")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    add_set(parser)
    parser.set_defaults(run=run_compare, name="compare")


def run_compare(arguments: argparse.Namespace) -> int:
    """`planner compare`: 0, or what planning and reading raise."""
    from planner.comparing import compare_files

    plan, events_of = _plan_to_compare(arguments, compare_files.target_of(arguments.measured))
    found = compare_files.run_compare(
        plan, arguments.measured, case=arguments.case, rank=arguments.rank, events_of=events_of
    )
    print(compare_files.format_comparisons(found, as_json=arguments.format == "json"), end="")
    return DONE


def _plan_to_compare(arguments: argparse.Namespace, target: str) -> tuple[Predicted, Callable[[int], Sequence[Event]]]:
    """A finished plan or run as it is, a job planned for the kernels of `target`; with a job its ranks' events."""
    from planner.comparing.compare_files import no_events
    from planner.comparing.stored_plans import read_stored_plan

    stored = None if arguments.set or arguments.job == "-" else read_stored_plan(Path(arguments.job))
    if stored is not None:
        return stored, no_events
    from planner.planning.pipeline import plan_with_traces

    job = job_of(arguments)
    with show_progress() as progress:
        found = plan_with_traces(job, progress=progress, target=target)
    return found.plan, found.events_of
