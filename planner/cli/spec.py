"""`planner spec`: a job spec with every default filled in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.options import common_options

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner spec`."""
    parser = commands.add_parser(
        "spec",
        parents=[common_options()],
        help="print a job spec with every default filled in",
        description="Checks a job spec and prints it with every default filled in.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.spec.bundle import bundle_text
    from planner.spec.loading import load_job
    from planner.spec.printing import job_yaml

    job = load_job(arguments.job)
    print(bundle_text(job) if arguments.bundle else job_yaml(job), end="")
    return DONE
