"""`planner gpu-truth`: what the GPU of this machine takes for ten usual steps, as facts that calibrate plans for it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, OUR_FAULT
from planner.cli.options import common_options
from planner.distribution import refuse_without
from planner.errors import MeasureError
from planner.facts.folder import VARIABLE

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner gpu-truth`."""
    parser = commands.add_parser(
        "gpu-truth",
        parents=[common_options()],
        help="calibrate plans for the GPU of this machine",
        description="Measures ten usual steps on a GPU, each in a process of its own, plans the same, and writes what "
        "that teaches as facts into DIR. Plans for that GPU and torch are calibrated where PLANNER_FACTS names DIR. "
        "Nothing else is to run on the GPU meanwhile.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for the facts")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 (default: %(default)s)")
    parser.add_argument("--only", default="", help="steps whose name has this text")
    parser.set_defaults(run=run_gpu_truth)


def run_gpu_truth(arguments: argparse.Namespace) -> int:
    """`planner gpu-truth`: 0, or 1 if some steps could not be measured; FactsError or MeasureError if none could."""
    refuse_without(("torch", "transformers"), extra="plan", user="measuring")
    from planner.planning.gpu_truth import learn_gpu, usual_steps

    steps = [step for step in usual_steps() if arguments.only in step.metadata.name]
    if not steps:
        names = ", ".join(step.metadata.name for step in usual_steps())
        raise MeasureError(f"no step has {arguments.only!r} in its name", allowed=names, place="--only")
    learnt, failed = learn_gpu(arguments.out, steps, lambda line: print(line, file=sys.stderr), device=arguments.device)
    print(learnt.describe(), end="")
    print(f"{VARIABLE}={arguments.out.resolve()} has plans calibrated by it", file=sys.stderr)
    return OUR_FAULT if failed else DONE
