"""`planner measure`: the very same step on a real device."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE
from planner.cli.job_input import job_of
from planner.cli.job_options import job_argument
from planner.cli.options import common_options
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner measure`."""
    parser = commands.add_parser(
        "measure",
        parents=[common_options(), job_argument()],
        help="run the very same step for real and write down what it took",
        description="Runs one rank's training step on a real device, its peers absent, and appends one line of JSON "
        "to a file. Running out of memory is a result.",
    )
    parser.add_argument("--device", required=True, help="cuda, cuda:1, or cpu")
    parser.add_argument("--rank", type=int, default=0, help="which rank to be (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("measurements.jsonl"), metavar="FILE.jsonl")
    parser.add_argument("--snapshot", type=Path, metavar="FILE.pickle.xz", help="also the allocator's history (cuda)")
    parser.set_defaults(run=run_measure, name="measure")


def run_measure(arguments: argparse.Namespace) -> int:
    """`planner measure`: 0, or SpecError or MeasureError."""
    job = job_of(arguments)
    conf = job.allocator.conf
    if conf:
        os.environ["PYTORCH_ALLOC_CONF"] = conf  # read once, while torch is imported
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler talks on standard error otherwise
    with show_progress() as progress:
        progress(f"measuring on {arguments.device}")
        from planner.measuring.measure_cases import run_measure as measured

        found = measured(
            job,
            device=arguments.device,
            rank=arguments.rank,
            out=arguments.output,
            snapshot=arguments.snapshot,
        )
    print(f"{found.case or 'the step'}: one line more in {arguments.output}", file=sys.stderr)
    return DONE
