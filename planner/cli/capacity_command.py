"""`planner capacity`: what GPU memory jobs asked for, will take and took."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner capacity`."""
    parser = commands.add_parser(
        "capacity",
        parents=[common_options()],
        help="say what GPU memory jobs asked for, will take and took, and what would be on other GPUs",
        description="Asks a planner service for capacity by team, queue and GPU. PyTorch is not needed.",
    )
    parser.add_argument("--server", default=os.environ.get("PLANNER_SERVER", ""), metavar="URL", help="PLANNER_SERVER")
    parser.add_argument("--since", default="", metavar="TIME", help="ended jobs too: 30d, 12h, 2026-01-31T12:00:00Z")
    parser.add_argument("--on", action="append", default=[], metavar="GPU", help="what would be on it; several times")
    parser.add_argument("--add-nodes", type=int, metavar="N", help="what new nodes with the first of --on change")
    parser.add_argument("--gpus-per-node", type=int, default=8, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`planner capacity`: 0, or SettingError, UnreachableError or what the service does not understand."""
    from planner.admission import capacity_query
    from planner.report.capacity_text import render_capacity

    found = capacity_query.ask(
        arguments.server, token=os.environ.get("PLANNER_TOKEN", ""), since=arguments.since, on=arguments.on,
        add_nodes=arguments.add_nodes, gpus_per_node=arguments.gpus_per_node, seconds=arguments.timeout,
    )  # fmt: skip
    print(json.dumps(found, indent=2) if arguments.format == "json" else render_capacity(found).rstrip("\n"))
    return DONE
