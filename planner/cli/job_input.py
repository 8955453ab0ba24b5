"""The job that a command line names, and the Python that is its own."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import PlannerError, SpecError

if TYPE_CHECKING:
    from planner.job.named_jobs import GivenJob
    from planner.job.schema import Job
    from planner.job.shorthand import Setting
    from planner.runtime.environments.interpreters import Interpreter


def enter_for_command(arguments: argparse.Namespace) -> None:
    """Goes on in the Python that the command behind `--` names, or in that of `--torch`; returns where it is this one,
    or has no torch. Raises PlannerError where the torch that is asked for is not to be had."""
    from planner.progress import show_progress
    from planner.runtime.environments.interpreters import go_on_as, stays_here, this_interpreter
    from planner.runtime.environments.torch_environments import make_environment
    from planner.versions import minor_of

    if stays_here():
        return
    wanted, python = minor_of(arguments.torch), _python_of(arguments)
    if python is None or wanted not in ("", python.minor):
        # Its torch is not the one that is asked for: this Python, or one that planner makes.
        if wanted in ("", this_interpreter().minor):
            return
        with show_progress() as progress:
            python = make_environment(wanted, progress)
    if not python.is_this:
        print(f"with the job's Python: {python}", file=sys.stderr)
        go_on_as(python, arguments.everything)


def _python_of(arguments: argparse.Namespace) -> Interpreter | None:
    """That of the command, if it has a torch at all."""
    from planner.job.command_python import find_python
    from planner.runtime.environments.interpreters import read_interpreter, this_interpreter

    python = find_python(arguments.command, os.environ)
    if not python:
        return None
    if os.path.dirname(python) == os.path.dirname(sys.executable) and os.path.samefile(python, sys.executable):
        return this_interpreter()
    try:
        interpreter = read_interpreter(python)
    except PlannerError as error:
        print(
            f"note: not with the job's Python: {error.place} {error.problem}; planner needs {error.allowed}",
            file=sys.stderr,
        )
        return None
    return interpreter if interpreter.torch else None


def enter_for_job(job: Job, arguments: argparse.Namespace, standard_input: str = "") -> None:
    """Goes on in the environment of the torch that the job runs with, if planner has made one; else returns. So it does
    where the torch of here is not a build for CUDA."""
    from planner.planning.identity import installed_torch, software
    from planner.versions import minor_of

    if minor_of(job.software.torch) == installed_torch() and not software()["torch"].endswith("+cpu"):
        return
    from planner.runtime.environments.interpreters import go_on_as, stays_here
    from planner.runtime.environments.torch_environments import find_environment

    python = None if stays_here() else find_environment(job.software.torch)
    if python is not None and not python.is_this:
        print(f"with the job's torch: {python}", file=sys.stderr)
        go_on_as(python, arguments.everything, standard_input)


_FILES = {
    "from_training_arguments": "trainer.arguments",
    "from_deepspeed": "trainer.arguments.deepspeed",
    "from_accelerate": "trainer.accelerate",
    "from_peft": "trainer.peft",
}
"""Options that name files, with the keys of a spec whose values these are."""


def job_of(arguments: argparse.Namespace, *, is_traced: bool = True) -> Job:
    """The job; what was supposed is said on standard error. One that is traced is so with its own torch, if that is to
    be found: then this process goes on there. Raises SpecError."""
    from planner.job.named_jobs import read

    given = _given(arguments)
    imported = read(given, Path())
    if is_traced:
        enter_for_job(imported.job, arguments, given.standard_input)
    for sentence in (*(f"taken: {text}" for text in imported.supposed), *(f"note: {text}" for text in imported.chosen)):
        say(sentence)
    return imported.job


def _given(arguments: argparse.Namespace) -> GivenJob:
    from planner.job.named_jobs import STANDARD_INPUT, GivenJob
    from planner.job.shorthand import Shorthand

    named = arguments.job or ""
    if not named:
        raise SpecError(
            "nothing says which job",
            allowed="JOB: a spec, a bundle, a model's name, or -",
            remedy=f"planner {arguments.name} Qwen/Qwen3-8B --gpus 4xH100 --fsdp, for a model that planner knows",
        )
    text = ""
    if named == STANDARD_INPUT:
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError:
            raise SpecError("standard input is not UTF-8 text", allowed="a job spec or a bundle") from None
    return GivenJob(
        named=named,
        standard_input=text,
        words=Shorthand.of_words(arguments) if hasattr(arguments, "gpus") else Shorthand(),
        files=_settings_of_files(arguments),
        settings=arguments.set,
    )


def _settings_of_files(arguments: argparse.Namespace) -> list[Setting]:
    """The files of other programs, as they are."""
    from planner.job.nodes import node_from_data
    from planner.job.shorthand import setting
    from planner.job.trainer import read_file

    settings = []
    for option, key in _FILES.items():
        if (path := getattr(arguments, option, None)) is not None:
            place = f"--{option.replace('_', '-')}"
            settings.append(setting(key, read_file(node_from_data(str(path), place, key), Path()), str(path)))
    return settings


def say(line: str) -> None:
    """A sentence on standard error."""
    wrapped = textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(wrapped, file=sys.stderr)
