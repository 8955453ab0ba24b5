"""`planner kueue`: the controller of Kueue's admission checks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options
from planner.distribution import refuse_without

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner kueue`."""
    parser = commands.add_parser(
        "kueue",
        parents=[common_options()],
        help="answer the admission checks of Kueue",
        description="Answers every AdmissionCheck of Kueue that is planner's until it is told to end (SIGTERM). "
        "PLANNER_SERVER names the planner service.",
    )
    parser.add_argument("--policy", type=Path, metavar="FILE.ini")
    parser.add_argument("--host", default="0.0.0.0", help="where probes are answered (default: %(default)s)")
    parser.add_argument("--health-port", type=int, default=8081, help="of the probes (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=8, help="workloads answered at a time (default: %(default)s)")
    parser.set_defaults(run=run_kueue)


def run_kueue(arguments: argparse.Namespace) -> int:
    """`planner kueue`: 0, or PlannerError for what it cannot work with."""
    refuse_without(("kubernetes",), extra="kubernetes", user="the controller")
    from planner.admission.kueue import run_controller

    run_controller(
        policy_file=arguments.policy,
        host=arguments.host,
        health_port=arguments.health_port,
        workers=arguments.workers,
    )
    return DONE
