"""`planner measure`: the very same step, or the very same program, on real devices."""

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
from planner.errors import SpecError
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.measuring.program_ranks import World

_STEPS, _PROGRAM = Path("measurements.jsonl"), Path("measured.json")


def add(commands: Commands) -> None:
    """Adds the parser of `planner measure`."""
    parser = commands.add_parser(
        "measure",
        parents=[common_options(), job_argument(needed=False)],
        help="run the very same step, or a program as it is, for real and write down what it took",
        usage="planner measure JOB --device DEVICE [options]\n       planner measure [options] -- COMMAND ...",
        description="With a job: runs one rank's training step on a real device, its peers absent, and appends one "
        "line of JSON to a file; running out of memory is a result. With a command (torchrun ... train.py): starts it "
        "as it stands on this machine's GPUs, writes down what every rank took, and ends with the command's exit code.",
    )
    parser.add_argument(
        "--device", default="", help="cuda, cuda:1, or cpu; of a program cuda (default), or cpu: started without GPUs"
    )
    parser.add_argument("--rank", type=int, help="of a job, which rank to be (default: 0)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help=f"where it is written (default: {_STEPS}, appended; of a program {_PROGRAM})",
    )  # fmt: skip
    parser.add_argument(
        "--snapshot", type=Path, metavar="PATH",
        help="also the allocator's history (cuda): FILE.pickle.xz; of a program a folder, a file for each rank",
    )  # fmt: skip
    parser.set_defaults(run=run_measure, name="measure")


def run_measure(arguments: argparse.Namespace) -> int:
    """`planner measure`: 0, a program's own exit code, or SpecError or MeasureError."""
    if arguments.command:
        return _measure_program(arguments)
    if not arguments.job:
        raise SpecError(
            "nothing says what to measure",
            allowed="JOB (a spec, a bundle, or -), or the command of a program behind --",
            remedy="planner measure -- torchrun --nproc-per-node 8 train.py",
        )
    if not arguments.device:
        raise SpecError("a job is measured, and no device is said", allowed="cuda, cuda:1, cpu", place="--device")
    return _measure_job(arguments)


def _measure_job(arguments: argparse.Namespace) -> int:
    job = job_of(arguments, is_traced=False)
    output = arguments.output or _STEPS
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
            rank=arguments.rank or 0,
            out=output,
            snapshot=arguments.snapshot,
        )
    print(f"{found.case or 'the step'}: one line more in {output}", file=sys.stderr)
    return DONE


def _measure_program(arguments: argparse.Namespace) -> int:
    """Without progress: the terminal is the program's."""
    from planner.measuring.measured_program import write
    from planner.measuring.program import check_gpus, measure_program

    _check_for_program(arguments)
    world = _world_of(arguments.command)
    if arguments.device != "cpu":
        check_gpus()
    output = arguments.output or _PROGRAM
    found = measure_program(arguments.command, world, output, snapshots=arguments.snapshot)
    write(output, found)
    for each in found.without_figures:
        print(f"planner: rank {each.rank} left no figures: {each.reason}", file=sys.stderr)
    print(f"planner: figures of {len(found.ranks)} of {world.size} ranks in {output}", file=sys.stderr)
    return found.exit_code


def _check_for_program(arguments: argparse.Namespace) -> None:
    if arguments.job or arguments.set:
        said = arguments.job or "--set"
        raise SpecError(f"{said} stands beside a command", allowed="a job, or a command behind --", place="JOB")
    if arguments.rank is not None:
        raise SpecError("a program is measured in all its ranks", allowed="--rank beside a job", place="--rank")
    if arguments.device not in ("", "cuda", "cpu"):
        raise SpecError(
            f"a program chooses its GPUs itself, and --device is {arguments.device[:40]!a}",
            allowed="cuda, cpu",
            remedy="set CUDA_VISIBLE_DEVICES",
            place="--device",
        )


def _world_of(command: list[str]) -> World:
    """Read as `planner run` reads it: its errors are the same."""
    from planner.measuring.program_ranks import World
    from planner.running.launch_line import Launcher, parse
    from planner.running.task_launch import Starter

    line = parse(command, inherited=os.environ)
    variable = ""
    if line.launcher is Launcher.PYTHON and line.tasks is not None:
        variable = {Starter.SRUN: "SLURM_PROCID", Starter.MPI: "OMPI_COMM_WORLD_RANK"}.get(line.tasks.starter, "")
    return World(size=line.world_size, variable=variable)
