"""The Python that a command is done with: that of the job, where it is another one than planner's own."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.environments.interpreter import Interpreter
    from planner.job.schema import Job


def enter_for_command(arguments: argparse.Namespace) -> None:
    """Goes on in the Python that the command behind `--` names, or in that of `--torch`; returns where it is this one,
    or has no torch. Raises PlannerError where the torch that is asked for is not to be had."""
    from planner.environments.handover import go_on_as, stays_here

    if stays_here():
        return
    found = _python_of(arguments)
    if found is not None and not found.is_this:
        print(f"with the job's Python: {found}", file=sys.stderr)
        go_on_as(found, arguments.everything)


def _python_of(arguments: argparse.Namespace) -> Interpreter | None:
    """That of the command if it has the torch that is asked for, else this one or one that planner makes."""
    from planner.environments.interpreter import this_interpreter
    from planner.environments.making import make_environment
    from planner.facts.versions import minor_of
    from planner.progress import show_progress

    wanted, named = minor_of(arguments.torch), _named(arguments)
    if named is not None and wanted in ("", named.minor):
        return named
    if wanted in ("", this_interpreter().minor):
        return None
    with show_progress() as progress:
        return make_environment(wanted, progress)


def _named(arguments: argparse.Namespace) -> Interpreter | None:
    """That of the command, if it has a torch at all."""
    from planner.environments.interpreter import read_interpreter, this_interpreter
    from planner.running.command_interpreter import find_python

    python = find_python(arguments.command, os.environ)
    if not python:
        return None
    if os.path.dirname(python) == os.path.dirname(sys.executable) and os.path.samefile(python, sys.executable):
        return this_interpreter()
    try:
        found = read_interpreter(python)
    except PlannerError as error:
        print(
            f"note: not with the job's Python: {error.place} {error.problem}; planner needs {error.allowed}",
            file=sys.stderr,
        )
        return None
    return found if found.torch else None


def enter_for_job(job: Job, arguments: argparse.Namespace, standard_input: str = "") -> None:
    """Goes on in the environment of the torch that the job runs with, if planner has made one; else returns."""
    from planner.facts.versions import minor_of
    from planner.planning.identity import installed_torch

    if minor_of(job.software.torch) == installed_torch():
        return
    from planner.environments.handover import go_on_as, stays_here
    from planner.environments.torch_environments import find_environment

    found = None if stays_here() else find_environment(job.software.torch)
    if found is not None and not found.is_this:
        print(f"with the job's torch: {found}", file=sys.stderr)
        go_on_as(found, arguments.everything, standard_input)
