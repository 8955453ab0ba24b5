"""`planner completion`: a script by which a shell completes planner's commands and options."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.cli.options import DONE, common_options
from planner.distribution import refuse_without

if TYPE_CHECKING:
    from planner.cli.options import Commands


def add(commands: Commands, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Adds the parser of `planner completion`; `whole` makes that of all commands."""
    parser = commands.add_parser(
        "completion",
        parents=[common_options()],
        help="print a script that lets a shell complete commands and options",
        description="Prints a script for the shell, for ~/.local/share/bash-completion/completions/planner under bash"
        " and a file _planner in a folder of $fpath under zsh.",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    parser.set_defaults(run=lambda arguments: run_completion(arguments, whole()))


def run_completion(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """`planner completion`: 0, or PlannerError without shtab."""
    refuse_without(("shtab",), extra="completion", user="shell completion")
    shtab: Any = importlib.import_module("shtab")
    print(shtab.complete(parser, shell=arguments.shell))
    return DONE
