"""The command line: parse, call, show. Heavy rooms are imported by the command that needs them.

A command is one function that adds its parser and one that runs it and returns the exit code: 0 fits, tight or done,
3 does not fit. `main` adds 2 for input that is wrong and 1 for a fault of planner's own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from planner.errors import PlannerError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DONE, OUR_FAULT, WRONG_INPUT = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 128 + 2, 128 + 13
"""As shells report a process that SIGINT or SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; no exception leaves it."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said why: 0 after --help and --version, 2 for a usage error
        return stop.code if isinstance(stop.code, int) else WRONG_INPUT
    debug = bool(arguments.debug or os.environ.get("PLANNER_DEBUG"))
    try:
        run = cast(Callable[[argparse.Namespace], int], arguments.run)
        code = run(arguments)
        sys.stdout.flush()
        return code
    except PlannerError as error:
        _say(str(error), debug)
        return WRONG_INPUT
    except KeyboardInterrupt:
        _say("interrupted", debug)
        return INTERRUPTED
    except BrokenPipeError:
        # What is left in the buffer has no reader; without this, Python complains about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        hint = "" if debug else "; --debug shows where"
        _say(f"planner: a fault of planner itself, please report it: {problem}{hint}", debug)
        return OUR_FAULT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner",
        description="Says before a PyTorch training job starts what GPU memory every rank will take.",
        parents=[_common_options()],
    )
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"planner {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_spec(commands)
    return parser


def _common_options() -> argparse.ArgumentParser:
    """What every command takes, before and after its name."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # a default here would undo what stands before the command's name
        help="show where an error comes from (also: PLANNER_DEBUG=1)",
    )
    return options


def _add_spec(commands: Commands) -> None:
    parser = commands.add_parser(
        "spec",
        parents=[_common_options()],
        help="print a job spec with every default filled in",
        description="Checks a job spec and prints it with every default filled in.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a job spec (YAML) or a bundle (JSON)")
    parser.add_argument("--bundle", action="store_true", help="print one self-contained JSON object instead")
    parser.set_defaults(run=run_spec)


def run_spec(arguments: argparse.Namespace) -> int:
    """`planner spec`: 0, or SpecError."""
    from planner.spec.bundle import bundle_text
    from planner.spec.loading import load_job
    from planner.spec.printing import job_yaml

    job = load_job(arguments.job)
    print(bundle_text(job) if arguments.bundle else job_yaml(job), end="")
    return DONE


def _say(message: str, debug: bool) -> None:
    """To people, on stderr; with the traceback of the exception at hand if they asked for it."""
    if debug:
        traceback.print_exc()
    print(message, file=sys.stderr)


def _version() -> str:
    try:
        return importlib.metadata.version("planner")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
