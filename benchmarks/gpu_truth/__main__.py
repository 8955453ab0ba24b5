"""`python -m gpu_truth`: the matrix of cases, measured on a GPU, set beside paper, and made into facts.

The command of `make gpu-truth`, `make gpu-facts` and `make rehearse-gpu-truth`; its parent folder is on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.options import DONE, OUR_FAULT, WRONG_INPUT
from planner.errors import MeasureError, PlannerError

if TYPE_CHECKING:
    from planner.truth.measuring.measurement_lines import Measurement


def build_parser() -> argparse.ArgumentParser:
    """The options of the campaign."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_truth",
        description="Measures the whole matrix of cases, each in a process of its own, into files in DIR, the most "
        "valuable first. Cases that have an answer there are skipped. Beside the same on paper the measurements become "
        "facts, by which plans for that GPU and torch are calibrated.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for what is measured")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu; or paper:sm_90 (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="small sizes: a rehearsal")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time (default: %(default)s)")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument(
        "--minutes", type=float, default=9, help="no case is begun that would end later (default: %(default)s)"
    )
    parser.add_argument(
        "--against", type=Path, metavar="DIR",
        help="say what differs from that folder; on paper, jobs are taken as they were measured there",
    )  # fmt: skip
    parser.add_argument(
        "--learn", type=Path, metavar="FACTS",
        help="write what --out (a GPU) teaches beside --against (paper) into this folder of facts",
    )  # fmt: skip
    return parser


def main() -> int:
    """0 if every case has an answer, 1 if some failed or were not reached in time, 2 for a wrong input."""
    try:
        return _run(build_parser().parse_args())
    except PlannerError as error:
        print(error, file=sys.stderr)
        return WRONG_INPUT


def _run(arguments: argparse.Namespace) -> int:
    if arguments.learn:
        return _learn(arguments)
    from gpu_truth import campaign

    against = _lines(arguments.against) if arguments.against else []
    matrix = campaign.Matrix(
        out=arguments.out,
        device=arguments.device,
        small=arguments.small,
        jobs=arguments.jobs,
        only=arguments.only,
        seconds=60 * arguments.minutes,
        as_measured={each.case: each for each in against if each.job and each.phases and not each.error},
    )
    missing = campaign.measure_matrix(matrix)
    if against:
        _compare(_lines(arguments.out), against)
    return OUR_FAULT if missing else DONE


def _learn(arguments: argparse.Namespace) -> int:
    if not arguments.against:
        raise MeasureError("nothing says where the same lies on paper", allowed="--against DIR", place="--learn")
    from planner.planning.gpu_truth import learn_facts

    print(learn_facts(_lines(arguments.out), _lines(arguments.against), arguments.learn).describe(), end="")
    return DONE


def _lines(folder: Path) -> list[Measurement]:
    """Raises MeasureError for a folder without measurements."""
    from gpu_truth.results import measurement_files
    from planner.truth.measuring import measurement_lines

    files = measurement_files(folder)
    if not files:
        raise MeasureError(f"{folder} has no measurements", allowed="a folder that the campaign wrote")
    return [each for path in files for each in measurement_lines.read(path)]


def _compare(here: list[Measurement], there: list[Measurement]) -> None:
    """Operators by how much they differ, then steps. Where one folder was measured on paper it is the second."""
    from gpu_truth.operator_differences import compare_operators, render
    from gpu_truth.step_differences import compare_steps, render_steps

    if any(each.device.kind == "paper" for each in here):
        here, there = there, here
    print(render(compare_operators(here, there)), end="")
    print(render_steps(compare_steps(here, there)), end="")


if __name__ == "__main__":
    sys.exit(main())
