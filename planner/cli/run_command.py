"""`planner run`: a training program as it is, on paper: what every rank will hold, and whether it fits."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.job_input import enter_for_command
from planner.cli.options import DONE, EXCEEDS, common_options, style
from planner.errors import SpecError
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.planning.program import ProgramInputs
    from planner.tracing.program.rank_orders import RankRun

_GPU = "H100-SXM-80GB"
_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
_MOST_STEPS, _MOST_SECONDS = 100_000, 86_400.0
_MOST_STEPS_AT, _MOST_DIGITS = 16, 10


def add_run(commands: Commands) -> None:
    """Adds the parser of `planner run`."""
    parser = commands.add_parser(
        "run",
        parents=[common_options()],
        help="run a training program as it is, on paper, and say what every rank will hold",
        usage="planner run [options] -- COMMAND ...",
        description="Runs the program of a command (python, torchrun, accelerate launch, deepspeed) unedited, as "
        "one rank of its world, on a GPU that is not there, until its memory is steady. Ends with 0 if it fits (also "
        "tightly), 3 if it does not, 2 if the program or the command is at fault.",
    )
    parser.add_argument(
        "--gpu", default=_GPU, metavar="NAME",
        help=f"its name, or '{{total_bytes: 9.5GiB, arch: sm_80}}' (default: {_GPU})",
    )  # fmt: skip
    parser.add_argument(
        "--torch",
        default="",
        metavar="VERSION",
        help="the torch that the job runs with, as 2.8: its environment is made, once, where the command's Python has "
        "another (default: that of the command's Python)",
    )
    parser.add_argument(
        "--ranks", default="auto", help="auto (the first two, one of the middle and the last), all, or numbers (0,7)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        metavar="N",
        help="iterations (default: until it is steady and was seen to evaluate twice and to save, within --patience)",
    )
    parser.add_argument(
        "--steps-at", default="", metavar="STEPS", help="let the program's loop count to these steps (0,900,1800), and "
        "say what each takes: for sizes that depend on the step",
    )  # fmt: skip
    parser.add_argument(
        "--patience",
        type=float,
        metavar="S",
        help="seconds of a processor for which a steady program is watched "
        "for evaluations and checkpoints (default: twice the iterations that it took to be steady, at most 60 s)",
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each rank may take (default: 1800)")
    parser.add_argument(
        "--host-memory", default="", metavar="SIZE", help="what the job may use of each node's main memory, as 480GiB: "
        "the nodes are judged too (default: counted, not judged)",
    )  # fmt: skip
    parser.add_argument("--strict", action="store_true", help="refuse to answer values that only the device would have")
    parser.add_argument(
        "--allow-writes", action="store_true", help="files that the program writes stay (default: gone)"
    )
    parser.add_argument(
        "--with", dest="packages", default="", metavar="NAMES", help="packages that the job has and this machine has "
        "not, between commas (flash-attn): stand-ins allocate what their kernels do",
    )  # fmt: skip
    parser.add_argument("--kernels", default="", metavar="FILE", help="a Python file that describes your own kernels")
    parser.add_argument("--save-spec", metavar="FILE", help="write what a spec can say of the program (JOB.yaml)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json prints one object only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """`planner run`: 0 or 3, or what running raises; in the interpreter of the command, if that is another one."""
    _check_torch(arguments.torch)
    enter_for_command(arguments)
    from planner.planning.program import judge_runs
    from planner.report.program_statement import to_json
    from planner.report.program_text import render
    from planner.tracing.program.rank_process import CrashedError

    work = _inputs(arguments)
    try:
        with show_progress() as progress:
            found, runs = judge_runs(work, progress)
    except CrashedError as crash:
        print(f"--- the program's own traceback ---\n{crash.text.rstrip()}\n---", file=sys.stderr)
        raise
    if arguments.save_spec:
        _save_spec(Path(arguments.save_spec), runs[0], work)
    if arguments.format == "json":
        print(json.dumps(to_json(found), indent=2))
    else:
        print(render(found, style()), end="")
    if found.verdict == "tight":
        print("warning: it is tight", file=sys.stderr)
    return EXCEEDS if found.verdict == "exceeds" else DONE


def _save_spec(path: Path, run: RankRun, work: ProgramInputs) -> None:
    from planner.planning.program_spec import spec_text

    text = spec_text(run, work)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot be written: {error.strerror}", allowed="a file", place=str(path)) from None


def _inputs(arguments: argparse.Namespace) -> ProgramInputs:
    from planner.job.loading import read_gpu
    from planner.job.shorthand import read_host_memory
    from planner.planning.program import inputs_of
    from planner.planning.program_ranks import choose_ranks
    from planner.tracing.program.launch_line import parse
    from planner.tracing.program.rank_process import USUAL_LIMITS

    _check_count("--steps", arguments.steps, _MOST_STEPS)
    _check_count("--seconds", arguments.seconds, _MOST_SECONDS)
    _check_count("--patience", arguments.patience or 0.0, _MOST_SECONDS)
    gpu = read_gpu(arguments.gpu, "--gpu")
    line = parse(arguments.command, inherited=os.environ)
    choose_ranks(arguments.ranks, line.world_size)
    seconds = arguments.seconds or USUAL_LIMITS.seconds
    return inputs_of(
        line,
        arguments.command,
        gpu,
        torch=arguments.torch,
        ranks=arguments.ranks,
        steps=arguments.steps,
        steps_at=_read_steps(arguments),
        patience_seconds=arguments.patience,
        strict=arguments.strict,
        writes=arguments.allow_writes,
        packages=tuple(name for name in arguments.packages.split(",") if name),
        kernels=arguments.kernels,
        limits=replace(USUAL_LIMITS, seconds=seconds),
        host_memory_bytes=read_host_memory(arguments.host_memory, "--host-memory"),
    )


def _check_torch(version: str) -> None:
    if version and not _VERSION.fullmatch(version):
        raise SpecError(f"--torch is {version}", allowed="two numbers, as 2.8", place="--torch")


def _read_steps(arguments: argparse.Namespace) -> tuple[int, ...]:
    parts = arguments.steps_at.split(",") if arguments.steps_at else []
    numbers = tuple(int(each) for each in parts if each.isascii() and each.isdigit() and len(each) < _MOST_DIGITS)
    if len(numbers) < len(parts) or list(numbers) != sorted(set(numbers)) or len(numbers) > _MOST_STEPS_AT:
        raise SpecError(
            f"--steps-at is {arguments.steps_at[:80]!a}",
            allowed=f"at most {_MOST_STEPS_AT} steps in their order between commas (0,900,1800)",
            place="--steps-at",
        )
    if numbers and arguments.steps:
        raise SpecError("--steps and --steps-at were both given", allowed="one of them", place="--steps-at")
    return numbers


def _check_count(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        raise SpecError(f"{name} is {value:g}", allowed=f"0 to {most:,g}", place=name)
