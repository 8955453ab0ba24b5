"""`planner search`: the layouts and settings of a job that fit, the best first."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, EXCEEDS, INTERRUPTED
from planner.cli.job_input import say
from planner.cli.job_options import job_options
from planner.cli.options import common_options, tracing_options
from planner.cli.search_input import asked_of, axes_of, planning, seconds_of, shift_words, time_option
from planner.cli.terminal import style
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.cli.options import Commands

_TIME = 120.0


def add(commands: Commands) -> None:
    """Adds the parser of `planner search`."""
    parser = commands.add_parser(
        "search",
        parents=[common_options(), tracing_options(), job_options()],
        help="find the layouts and settings of a job that fit, the best first",
        description="Varies how a job is laid out over its GPUs and settings that leave the training as it is, ranks"
        " what fits, and proves each by a plan. Axes may be restricted or added: recompute=none,full tp=1..8"
        " (docs/search.md). Ends with 0 if something fits, 3 if nothing is known to.",
    )
    parser.add_argument("axes", nargs="*", metavar="AXIS=VALUES", help="1,2,4; 1..64 doubles; 1..64:8 steps")
    parser.add_argument("--objective", default="cost", metavar="NAME", help="cost (default), memory or headroom")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="how many to show (default: %(default)s)")
    parser.add_argument("--global-batch", type=int, metavar="N", help="sequences of an optimizer step (default: kept)")
    time_option(parser, _TIME)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run_search, name="search")


def run_search(arguments: argparse.Namespace) -> int:
    """`planner search`: 0, 3, 130 if it was interrupted, or what reading raises."""
    from planner.searching.documents import search_to_json
    from planner.searching.engine import search
    from planner.searching.objectives import objective_of, refuse_inapplicable
    from planner.searching.text import render_search
    from planner.searching.usual_space import space_of

    shift_words(arguments)
    seconds, objective = seconds_of(arguments), objective_of(arguments.objective)
    if arguments.top < 1:
        raise SpecError(f"--top is {arguments.top}", allowed="a whole number from 1", place="--top")
    asked = asked_of(arguments)
    refuse_inapplicable(objective, asked.job)
    space = space_of(
        asked.job, gpus=asked.gpus, per_node=asked.per_node, global_batch=asked.global_batch, fixed=asked.fixed,
        gpu_names=asked.gpu_names, written=axes_of(arguments),
    )  # fmt: skip
    with planning(arguments, seconds) as (plans, progress):

        def note(said: str) -> None:
            progress.clear()
            say(f"note: {said}")

        found = search(
            space, plans, objective=objective, top=arguments.top, time_left=seconds, progress=progress,
            note=note,
        )  # fmt: skip
    if arguments.format == "json":
        print(json.dumps(search_to_json(found), indent=2))
    else:
        print(render_search(found, style()), end="")
    if found.stopped == "interrupted":
        return INTERRUPTED
    return DONE if found.rows else EXCEEDS
