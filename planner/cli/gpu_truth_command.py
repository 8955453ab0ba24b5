"""`planner gpu-truth`: the matrix of cases, measured on a GPU, set beside paper, and made into facts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.exit_codes import DONE, OUR_FAULT
from planner.cli.options import common_options
from planner.distribution import refuse_without
from planner.errors import MeasureError

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.measuring.measurement import Measurement


def add(commands: Commands) -> None:
    """Adds the parser of `planner gpu-truth`."""
    parser = commands.add_parser(
        "gpu-truth",
        parents=[common_options()],
        help="measure the matrix of cases on a GPU",
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
    parser.set_defaults(run=run_gpu_truth)


def run_gpu_truth(arguments: argparse.Namespace) -> int:
    """`planner gpu-truth`: 0 if every case has an answer, 1 if some failed or were not reached in time."""
    refuse_without(("torch", "transformers"), extra="plan", user="measuring")
    if arguments.learn:
        return _learn(arguments)
    from planner.measuring import gpu_truth

    against = _lines(arguments.against) if arguments.against else []
    matrix = gpu_truth.Matrix(
        out=arguments.out,
        device=arguments.device,
        small=arguments.small,
        jobs=arguments.jobs,
        only=arguments.only,
        seconds=60 * arguments.minutes,
        as_measured={each.case: each for each in against if each.job and each.phases and not each.error},
    )
    missing = gpu_truth.measure_matrix(matrix)
    if against:
        _compare(_lines(arguments.out), against)
    return OUR_FAULT if missing else DONE


def _learn(arguments: argparse.Namespace) -> int:
    if not arguments.against:
        raise MeasureError("nothing says where the same lies on paper", allowed="--against DIR", place="--learn")
    from planner.planning.learnt_facts import learn_facts

    print(learn_facts(_lines(arguments.out), _lines(arguments.against), arguments.learn).describe(), end="")
    return DONE


def _lines(folder: Path) -> list[Measurement]:
    """Raises MeasureError for a folder without measurements."""
    from planner.measuring import store
    from planner.measuring.results import measurement_files

    files = measurement_files(folder)
    if not files:
        raise MeasureError(f"{folder} has no measurements", allowed="a folder that planner gpu-truth wrote")
    return [each for path in files for each in store.read(path)]


def _compare(here: list[Measurement], there: list[Measurement]) -> None:
    """Operators by how much they differ, then steps. Where one folder was measured on paper it is the second."""
    from planner.comparing.operator_differences import compare_operators, render
    from planner.comparing.step_differences import compare_steps, render_steps

    if any(each.device.kind == "paper" for each in here):
        here, there = there, here
    print(render(compare_operators(here, there)), end="")
    print(render_steps(compare_steps(here, there)), end="")
