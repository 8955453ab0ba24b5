"""`planner torch`: environments in which jobs of another torch are planned and run."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from planner.cli.options import DONE, common_options
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add_torch(commands: Commands) -> None:
    """Adds the parser of `planner torch`."""
    parser = commands.add_parser(
        "torch",
        parents=[common_options()],
        help="make environments of other versions of torch, or list those that are there",
        description="Makes an environment for each of these versions of torch, once, in the user's cache "
        "($XDG_CACHE_HOME/planner/environments), by uv or by venv and pip, from the package sources that these are "
        "configured for. Jobs that name such a torch are then planned with it. Lists all that are there.",
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="two numbers, as 2.8")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`planner torch`: 0, or PlannerError for a version that is not to be had."""
    from planner.runtime.environments.torch_environments import list_environments, make_environment

    with show_progress() as progress:
        for version in arguments.versions:
            make_environment(version, progress)
    found = list_environments()
    for each in found:
        print(each)
    if not found:
        print("no environment has been made yet: planner torch 2.8 makes one", file=sys.stderr)
    return DONE
