"""`planner gpu-truth`: the matrix of cases, measured on a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, OUR_FAULT
from planner.cli.options import common_options
from planner.distribution import refuse_without

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands) -> None:
    """Adds the parser of `planner gpu-truth`."""
    parser = commands.add_parser(
        "gpu-truth",
        parents=[common_options()],
        help="measure the matrix of cases on a GPU",
        description="Measures the whole matrix of cases, each in a process of its own, into DIR/measurements.jsonl and "
        "DIR/snapshots.tar.xz. Cases that stand in the file already are skipped, unless they failed.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for what is measured")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu; or paper:sm_90 (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small sizes: a rehearsal")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument(
        "--minutes", type=float, default=9, help="no case is begun after so long (default: %(default)s)"
    )
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="say which operators allocate otherwise than in that folder"
    )
    parser.set_defaults(run=run_gpu_truth)


def run_gpu_truth(arguments: argparse.Namespace) -> int:
    """`planner gpu-truth`: 0 if every case has an answer, 1 if some failed or were not reached in time."""
    refuse_without(("torch", "transformers"), extra="plan", user="measuring")
    from planner.measuring import gpu_truth

    matrix = gpu_truth.Matrix(
        out=arguments.out,
        device=arguments.device,
        small=arguments.small,
        jobs=arguments.jobs,
        only=arguments.only,
        seconds=60 * arguments.minutes,
    )
    failed = gpu_truth.measure_matrix(matrix)
    if arguments.against:
        _compare(arguments.out, arguments.against)
    return OUR_FAULT if failed else DONE


def _compare(out: Path, against: Path) -> None:
    """Operators by how much they differ; of the two folders one was measured on paper."""
    from planner.comparing.operator_differences import compare_operators, render
    from planner.measuring import store
    from planner.measuring.gpu_truth import MEASUREMENTS

    here, there = store.read(out / MEASUREMENTS), store.read(against / MEASUREMENTS)
    if any(each.device.kind == "paper" for each in here):
        here, there = there, here
    print(render(compare_operators(here, there)), end="")
