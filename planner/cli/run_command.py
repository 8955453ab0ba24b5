"""`planner run`: a training program as it is, on paper; `planner torch`: environments with the torch of such jobs."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli.job_input import enter_for_command
from planner.cli.options import (
    DONE,
    add_command,
    add_format,
    add_risk,
    add_verbose,
    at_risk,
    print_plan,
)
from planner.errors import PlannerError, SpecError
from planner.job.size_limits import MOST_RANKS
from planner.progress import show_progress

if TYPE_CHECKING:
    from planner.cli.options import Commands
    from planner.planning.inputs import ProgramInputs

_GPU = "H100-SXM-80GB"
_VERSION = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}")
_MOST_STEPS, _MOST_SECONDS = 100_000, 86_400.0
_MOST_BATCHES = 10_000_000
_MOST_STEPS_AT, _MOST_DIGITS = 16, 10
_MOST_GPUS = 120
"""Of one node, that torch can see (torch 2.13, c10/cuda/CUDAMacros.h)."""


def add_run(commands: Commands) -> None:
    """Adds the parser of `planner run`."""
    parser = add_command(
        commands, "run", run_program,
        help="run a training program as it is, on paper, and say what every rank will hold",
        usage="planner run [options] -- COMMAND ...",
        description="Runs the program of a command (python, torchrun, accelerate launch, deepspeed) unedited, as "
        "one rank of its world, on a GPU that is not there, until its peak no longer rises. Ends with 0 if it fits "
        "(also tightly), 3 if it does not, 2 if the program or the command is at fault.",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", default=_GPU, metavar="NAME",
        help=f"its name, or '{{total_bytes: 9.5GiB, arch: sm_80}}' (default: {_GPU})",
    )  # fmt: skip
    parser.add_argument(
        "--torch", default="", metavar="VERSION", help="the torch that the job runs with, as 2.8: its environment is "
        "made, once, where the command's Python has another (default: that of the command's Python)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", default="", metavar="COUNT", help="GPUs of a node of the job (8), or its nodes and theirs (2x8): "
        "what torch.cuda.device_count() answers (default: as many as the command starts ranks on a node)",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", default="auto", help="auto (the first two, one of the middle and the last), all, or numbers (0,7)"
    )
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="iterations (default: until its peak no longer "
        "rises and it was seen to evaluate twice and to save, within --patience)",
    )  # fmt: skip
    parser.add_argument(
        "--steps-at", default="", metavar="STEPS", help="let the program's loop count to these steps (0,900,1800), and "
        "say what each takes: for sizes that depend on the step",
    )  # fmt: skip
    parser.add_argument(
        "--batches", type=int, metavar="N", help="how many batches of each DataLoader are drawn ahead, to give the "
        "program the largest early (default: an epoch, at most 60 s in all; none where steps are asked for)",
    )  # fmt: skip
    parser.add_argument(
        "--until-read", action="store_true", help="after --steps go on until the program reads the statistics of its "
        "memory (torch.cuda.max_memory_allocated), and end there: peaks are those that it prints",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, metavar="S", help="seconds of a processor for which a steady program is watched "
        "for evaluations and checkpoints (default: twice the iterations that it took to be steady, at most 60 s)",
    )  # fmt: skip
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
    parser.add_argument(
        "--show-output", action="store_true", help="show what the ranks that are run print, on standard error "
        "(default: the last 20 lines, if something goes wrong)",
    )  # fmt: skip
    add_format(parser)
    add_risk(parser)
    add_verbose(parser)


def run_program(arguments: argparse.Namespace) -> int:
    """`planner run`: 0 or 3, or what running raises; in the interpreter of the command, if that is another one."""
    if arguments.torch and not _VERSION.fullmatch(arguments.torch):
        raise SpecError(f"--torch is {arguments.torch}", allowed="two numbers, as 2.8", place="--torch")
    enter_for_command(arguments)
    from planner.planning.plan import plan_program
    from planner.tracing.program.rank_process import CrashedError

    work = _inputs(arguments)
    shown = ShownOutput(arguments.show_output, marks=work.line.most_ranks > 1)
    try:
        with show_progress() as progress:
            shown.clear = progress.clear
            judged = plan_program(work, progress, shown)
    except PlannerError as error:
        shown.print_last(getattr(error, "__notes__", ()))
        if isinstance(error, CrashedError):
            _print_block("the program's own traceback", error.text)
        raise
    for run in judged.runs:
        shown.print_last([run.said] if run.said else [])
        for failure in run.failed:
            _print_block("the program's own traceback", failure.text)
    return print_plan(arguments, at_risk(arguments, judged.plan))


def _print_block(name: str, text: str) -> None:
    print(f"--- {name} ---\n{text.rstrip()}\n---", file=sys.stderr)


class ShownOutput:
    """Shows lines of ranks as they come, if that `is_wanted`; `marks` them by their ranks."""

    def __init__(self, is_wanted: bool, *, marks: bool) -> None:
        self._is_wanted, self._marks = is_wanted, marks
        self._begun: dict[int, bytes] = {}
        """Of a rank's last line, which has not ended yet."""
        self.clear: Callable[[], None] = lambda: None
        """Takes another line off the terminal."""

    def __call__(self, rank: int, written: bytes) -> None:
        if not self._is_wanted:
            return
        *lines, self._begun[rank] = (self._begun.get(rank, b"") + written).split(b"\n")
        mark = f"[rank {rank}] " if self._marks else ""
        if lines:
            self.clear()
        for line in lines:
            print(mark + line.decode(errors="replace"), file=sys.stderr, flush=True)

    def print_last(self, said: Sequence[str]) -> None:
        """What came last before an error, unless all was shown."""
        for rank in [rank for rank, begun in self._begun.items() if begun]:
            self(rank, b"\n")
        if not self._is_wanted:
            for text in said:
                _print_block("the program's last output", text)


def _inputs(arguments: argparse.Namespace) -> ProgramInputs:
    from planner.job.launching.line import parse
    from planner.job.loading import read_gpu
    from planner.job.shorthand import read_host_memory
    from planner.planning.inputs import inputs_of
    from planner.planning.program_ranks import choose_ranks
    from planner.tracing.program.rank_process import USUAL_LIMITS

    for name, value, most in (
        ("--steps", arguments.steps, _MOST_STEPS),
        ("--batches", arguments.batches or 0, _MOST_BATCHES),
        ("--seconds", arguments.seconds, _MOST_SECONDS),
        ("--patience", arguments.patience or 0.0, _MOST_SECONDS),
    ):
        if not 0 <= value <= most:
            raise SpecError(f"{name} is {value:g}", allowed=f"0 to {most:,g}", place=name)
    gpu = read_gpu(arguments.gpu, "--gpu")
    nodes, node_gpus = _read_gpus(arguments.gpus)
    line = parse(arguments.command, inherited=os.environ, nodes=nodes, node_gpus=node_gpus)
    choose_ranks(arguments.ranks, line.most_ranks)
    return inputs_of(
        line,
        arguments.command,
        gpu,
        torch=arguments.torch,
        ranks=arguments.ranks,
        steps=arguments.steps,
        steps_at=_read_steps(arguments),
        until_read=arguments.until_read,
        batches=arguments.batches,
        patience_seconds=arguments.patience,
        strict=arguments.strict,
        writes=arguments.allow_writes,
        packages=tuple(name for name in arguments.packages.split(",") if name),
        kernels=arguments.kernels,
        limits=replace(USUAL_LIMITS, seconds=arguments.seconds or USUAL_LIMITS.seconds),
        host_memory_bytes=read_host_memory(arguments.host_memory, "--host-memory"),
    )


def _read_gpus(written: str) -> tuple[int, int]:
    """Nodes, and GPUs of each; 0 where nothing is said."""
    if not written:
        return 1, 0
    match = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?([1-9][0-9]{0,2})", written)
    nodes, gpus = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if not 0 < gpus <= _MOST_GPUS or nodes * gpus > MOST_RANKS:
        raise SpecError(
            f"--gpus is {written[:80]!a}",
            allowed=f"GPUs of a node (8), or nodes x GPUs (2x8): {_MOST_GPUS} of a node, {MOST_RANKS:,} in all",
            place="--gpus",
        )
    return nodes, gpus


def _read_steps(arguments: argparse.Namespace) -> tuple[int, ...]:
    parts = arguments.steps_at.split(",") if arguments.steps_at else []
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < _MOST_DIGITS)
    if len(numbers) < len(parts) or list(numbers) != sorted(set(numbers)) or len(numbers) > _MOST_STEPS_AT:
        raise SpecError(
            f"--steps-at is {arguments.steps_at[:80]!a}",
            allowed=f"at most {_MOST_STEPS_AT} steps in their order between commas (0,900,1800)",
            place="--steps-at",
        )
    if numbers and arguments.steps:
        raise SpecError("--steps and --steps-at were both given", allowed="one of them", place="--steps-at")
    return numbers


def add_torch(commands: Commands) -> None:
    """Adds the parser of `planner torch`."""
    parser = add_command(
        commands, "torch", run_torch,
        help="make environments of other versions of torch, or list those that are there",
        description="Makes an environment for each of these versions of torch, once, in the user's cache "
        "($XDG_CACHE_HOME/planner/environments), by uv or by venv and pip, from the package sources that these are "
        "configured for. Jobs that name such a torch are then planned with it. Lists all that are there.",
    )  # fmt: skip
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="two numbers, as 2.8")


def run_torch(arguments: argparse.Namespace) -> int:
    """`planner torch`: 0, or PlannerError for a version that is not to be had."""
    from planner.runtime.environments.torch_environments import list_environments, make_environment

    with show_progress() as progress:
        for version in arguments.versions:
            make_environment(version, progress)
    environments = list_environments()
    for environment in environments:
        print(environment)
    if not environments:
        print("no environment has been made yet: planner torch 2.8 makes one", file=sys.stderr)
    return DONE
