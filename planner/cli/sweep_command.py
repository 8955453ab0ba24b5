"""`planner sweep`: a plan of every point of a grid, as a table or CSV."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, INTERRUPTED
from planner.cli.job_input import job_of
from planner.cli.job_options import job_options
from planner.cli.options import common_options, tracing_options
from planner.cli.search_input import axes_of, planning, seconds_of, shift_words, time_option
from planner.cli.terminal import style
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cli.options import Commands

_TIME = 600.0


def add(commands: Commands) -> None:
    """Adds the parser of `planner sweep`."""
    parser = commands.add_parser(
        "sweep",
        parents=[common_options(), tracing_options(), job_options()],
        help="plan every point of a grid, such as micro_batch_size=1..64 sequence_length=2k..64k",
        description="Plans every point of a grid, everything else as the job says it. 1..64 doubles, 1..64:8 takes"
        " steps. Ends with 0, whatever fits.",
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="micro_batch_size=1..64")
    time_option(parser, _TIME)
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="csv has a line a point")
    parser.set_defaults(run=run_sweep, name="sweep")


def run_sweep(arguments: argparse.Namespace) -> int:
    """`planner sweep`: 0, 130 if it was interrupted, or what reading raises."""
    from planner.searching.documents import sweep_to_json
    from planner.searching.space import Space
    from planner.searching.sweeping import sweep
    from planner.searching.text import csv_of, render_sweep

    shift_words(arguments)
    axes = axes_of(arguments)
    if not axes:
        raise SpecError(
            "nothing is varied",
            allowed="one axis or several: micro_batch_size=1..64 sequence_length=2k..64k",
            remedy=f"planner sweep {arguments.job or 'JOB'} micro_batch_size=1..8",
        )
    seconds = seconds_of(arguments)
    space = Space(base=job_of(arguments), axes=tuple(axes))
    with planning(arguments, seconds) as (plans, progress):
        found = sweep(space, plans, progress)
    if arguments.format == "json":
        print(json.dumps(sweep_to_json(found), indent=2))
    elif arguments.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(csv_of(found))
    else:
        print(render_sweep(found, style()), end="")
    return INTERRUPTED if found.stopped == "interrupted" else DONE
