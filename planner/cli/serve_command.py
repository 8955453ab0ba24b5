"""`planner serve`: plans and checks over HTTP."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner serve`."""
    parser = commands.add_parser(
        "serve",
        parents=[common_options()],
        help="answer plans and checks over HTTP",
        description="Runs in the foreground until it is told to end (SIGTERM, Ctrl-C) and prints one line with the "
        "address when it is ready. Other settings are PLANNER_... variables.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 answers other machines too (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8642, help="(default: %(default)s)")
    parser.add_argument("--database", default="", metavar="URL", help="sqlite:///FILE, postgresql://USER@HOST/NAME")
    parser.set_defaults(run=run_serve)


def run_serve(arguments: argparse.Namespace) -> int:
    """`planner serve`: 0, or what cannot be used."""
    from planner.service.server import run_serve as served

    served(arguments.host, arguments.port, arguments.database)
    return DONE
