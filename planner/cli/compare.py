"""`planner compare`: what was predicted beside what was measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options
from planner.progress import shown

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.events import Event
    from planner.report.statement import Plan


def add(commands: Commands) -> None:
    """Adds the parser of `planner compare`."""
    parser = commands.add_parser(
        "compare",
        parents=[common_options()],
        help="set a plan and a measurement, or a recorded snapshot, side by side",
        description="Sets what was predicted beside what was measured: peaks, phases, categories.",
    )
    parser.add_argument("plan", type=Path, metavar="PLAN|JOB", help="what planner plan --format json wrote, or a job")
    parser.add_argument("measured", type=Path, metavar="MEASUREMENTS|SNAPSHOT", help="a .jsonl file, or a snapshot")
    parser.add_argument("--case", default="", help="only measurements of this case")
    parser.add_argument("--rank", type=int, help="only measurements of this rank")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_compare)


def run_compare(arguments: argparse.Namespace) -> int:
    """`planner compare`: 0, or what planning and reading raise."""
    from planner.comparing import command

    plan, events = _plan_to_compare(arguments.plan, command.target_of(arguments.measured))
    found = command.run_compare(plan, arguments.measured, case=arguments.case, rank=arguments.rank, events=events)
    print(command.shown(found, as_json=arguments.format == "json"), end="")
    return DONE


def _plan_to_compare(path: Path, target: str) -> tuple[Plan, Sequence[Event]]:
    """A finished plan as it is, a job planned for the kernels of `target`; with the latter its events."""
    from planner.report.statement import SCHEMA, from_json
    from planner.spec.loading import load_job

    document = _json_object(path)
    if document.get("schema") == SCHEMA:
        return from_json(document), ()
    from planner.planning import planned

    with shown() as progress:
        found = planned(load_job(path), progress=progress, target=target)
    return found.plan, found.traces[0].trace.events


def _json_object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a YAML spec, or nothing at all: the loader says which
    return document if isinstance(document, dict) else {}
