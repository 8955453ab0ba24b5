"""The shell around every command: parse, run, and turn what goes wrong into a message and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, cast

from planner.cli import (
    failure_commands,
    measure_commands,
    plan_commands,
    run_command,
    search_commands,
    service_commands,
)
from planner.cli.options import DONE, INTERRUPTED, OUR_FAULT, PIPE_CLOSED, WRONG_INPUT, add_command, common_options
from planner.distribution import refuse_without, version
from planner.errors import PlannerError
from planner.runtime.garbage_collection import collect_rarely_until_exit, skip_collection_at_exit

_COMMANDS = (
    plan_commands.add_plan, run_command.add_run, plan_commands.add_check, search_commands.add_search,
    search_commands.add_extremes, search_commands.add_sweep, plan_commands.add_spec, failure_commands.add_replay,
    failure_commands.add_explain, measure_commands.add_measure, measure_commands.add_compare,
    measure_commands.add_validate, measure_commands.add_gpu_truth, service_commands.add_serve,
    service_commands.add_capacity, service_commands.add_webhook, service_commands.add_kueue, run_command.add_torch,
)  # fmt: skip
"""In the order in which `planner --help` lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, by default that of this process, and returns the exit code; no exception leaves it."""
    if argv is not None:
        return _run(list(argv))
    collect_rarely_until_exit()
    code = _run(sys.argv[1:])
    skip_collection_at_exit()
    return code


def _run(everything: list[str]) -> int:
    written, command = everything, []
    if next((word for word in everything if not word.startswith("-")), "") in ("check", "measure", "run"):
        # What is planner's, and the command behind `--` that these are put in front of.
        end = everything.index("--") if "--" in everything else len(everything)
        written, command = everything[:end], everything[end + 1 :]
    try:
        arguments = _parse(written)
    except SystemExit as stop:  # argparse has said why: 0 after --help and --version, 2 for a usage error
        return stop.code if isinstance(stop.code, int) else WRONG_INPUT
    arguments.everything, arguments.command = everything, command
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
        problem = "".join(traceback.format_exception_only(error)).splitlines()[0]
        hint = "" if debug else "; --debug shows where"
        _say(f"planner: a fault of planner itself, please report it: {problem}{hint}", debug)
        return OUR_FAULT


def _parse(written: Sequence[str]) -> argparse.Namespace:
    """Axes of a search may stand behind options too, where argparse takes no further words. Raises SystemExit."""
    parser = _parser()
    arguments, more = parser.parse_known_args(written)
    if more and (not hasattr(arguments, "axes") or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        arguments.axes += more
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner",
        description="Says before a PyTorch training job starts what GPU memory every rank will take.",
        parents=[common_options()],
    )
    parser.set_defaults(debug=False)
    parser.add_argument("--version", action="version", version=f"planner {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in _COMMANDS:
        add(commands)
    completion = add_command(
        commands, "completion", run_completion,
        help="print a script that lets a shell complete commands and options",
        description="Prints a script for the shell, for ~/.local/share/bash-completion/completions/planner under bash"
        " and a file _planner in a folder of $fpath under zsh.",
    )  # fmt: skip
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    return parser


def run_completion(arguments: argparse.Namespace) -> int:
    """`planner completion`: 0, or PlannerError without shtab."""
    refuse_without(("shtab",), extra="completion", user="shell completion")
    shtab: Any = importlib.import_module("shtab")
    print(shtab.complete(_parser(), shell=arguments.shell))
    return DONE


def _say(message: str, debug: bool) -> None:
    """To people, on stderr; with the traceback of the exception at hand if they asked for it."""
    if debug:
        traceback.print_exc()
    print(message, file=sys.stderr)
