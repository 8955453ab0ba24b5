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
    from planner.job.importers.job_import import GivenJob, ImportedJob, ImportSources
    from planner.job.schema import Job
    from planner.job.shorthand import Shorthand
    from planner.runtime.environments.interpreters import Interpreter


def enter_for_command(arguments: argparse.Namespace) -> None:
    """Goes on in the Python that the command behind `--` names, or in that of `--torch`; returns where it is this one,
    or has no torch. Raises PlannerError where the torch that is asked for is not to be had."""
    from planner.runtime.environments.handover import go_on_as, stays_here

    if stays_here():
        return
    found = _python_of(arguments)
    if found is not None and not found.is_this:
        print(f"with the job's Python: {found}", file=sys.stderr)
        go_on_as(found, arguments.everything)


def _python_of(arguments: argparse.Namespace) -> Interpreter | None:
    """That of the command if it has the torch that is asked for, else this one or one that planner makes."""
    from planner.progress import show_progress
    from planner.runtime.environments.interpreters import this_interpreter
    from planner.runtime.environments.torch_environments import make_environment
    from planner.versions import minor_of

    wanted, named = minor_of(arguments.torch), _named(arguments)
    if named is not None and wanted in ("", named.minor):
        return named
    if wanted in ("", this_interpreter().minor):
        return None
    with show_progress() as progress:
        return make_environment(wanted, progress)


def _named(arguments: argparse.Namespace) -> Interpreter | None:
    """That of the command, if it has a torch at all."""
    from planner.runtime.environments.interpreters import read_interpreter, this_interpreter
    from planner.tracing.program.launch_line import find_python

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
    from planner.planning.identity import installed_torch
    from planner.versions import minor_of

    if minor_of(job.software.torch) == installed_torch():
        return
    from planner.runtime.environments.handover import go_on_as, stays_here
    from planner.runtime.environments.torch_environments import find_environment

    found = None if stays_here() else find_environment(job.software.torch)
    if found is not None and not found.is_this:
        print(f"with the job's torch: {found}", file=sys.stderr)
        go_on_as(found, arguments.everything, standard_input)


_SOURCES = (
    "from_training_arguments",
    "from_accelerate",
    "from_deepspeed",
    "from_torchrun",
    "from_peft",
    "from_torchtitan",
    "from_axolotl",
    "from_llama_factory",
)


def job_of(arguments: argparse.Namespace, *, is_traced: bool = True) -> Job:
    """The job; what was supposed is said on standard error. One that is traced is so with its own torch, if that is to
    be found: then this process goes on there. Raises SpecError."""
    from planner.job.importers.job_import import read

    given = _given(arguments)
    found = read(given, Path())
    if is_traced:
        enter_for_job(found.job, arguments, given.standard_input)
    _tell(found)
    return found.job


def _given(arguments: argparse.Namespace) -> GivenJob:
    from planner.job.importers.job_import import STANDARD_INPUT, GivenJob

    if getattr(arguments, "from_megatron", ""):
        raise SpecError(
            "Megatron-LM's arguments are not read: its step is another implementation than a spec's",
            allowed="its own program, whose plan was exact or within 1.5 % of published runs",
            remedy="planner run --gpu NAME -- torchrun ... pretrain_gpt.py ... (docs/run.md)",
            place="--from-megatron",
        )
    named = arguments.job or ""
    sources = _sources(arguments)
    model = getattr(arguments, "model", None)
    if sources is None and model:
        if named:
            raise SpecError(
                f"--model {model} stands beside the job {named}",
                allowed="a model in the place of JOB; --model with --from-...",
                remedy=f"write --set model.hf_config={model} to plan the job with another model",
            )
        named = model
    if not named and sources is None:
        raise SpecError(
            "nothing says which job",
            allowed="JOB (a spec, a bundle, a model's name, or -), or --from-...",
            remedy=f"planner {arguments.name} Qwen/Qwen3-8B --gpus 4xH100 --fsdp, for a model that planner knows",
        )
    return GivenJob(
        named=named,
        standard_input=_standard_input() if named == STANDARD_INPUT else "",
        words=_words(arguments),
        settings=arguments.set,
        sources=sources,
    )


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise SpecError("standard input is no UTF-8 text", allowed="a job spec or a bundle") from None


def _words(arguments: argparse.Namespace) -> Shorthand:
    from planner.job.shorthand import Shorthand

    if not hasattr(arguments, "gpus"):
        return Shorthand()
    return Shorthand.of_words(arguments)


def has_sources(arguments: argparse.Namespace) -> bool:
    """Whether files of other programs say the job."""
    return any(getattr(arguments, name, None) for name in _SOURCES) or bool(getattr(arguments, "model", None))


def _sources(arguments: argparse.Namespace) -> ImportSources | None:
    """None where no file of another program is given."""
    if not any(getattr(arguments, name, None) for name in _SOURCES):
        return None
    from planner.job.importers.job_import import ImportSources

    return ImportSources(
        training_arguments=arguments.from_training_arguments,
        accelerate=arguments.from_accelerate,
        deepspeed=arguments.from_deepspeed,
        torchrun=arguments.from_torchrun,
        peft=arguments.from_peft,
        torchtitan=arguments.from_torchtitan,
        axolotl=arguments.from_axolotl,
        llama_factory=arguments.from_llama_factory,
        model=arguments.model,
    )


def _tell(found: ImportedJob) -> None:
    for source, names in found.ignored.items():
        if names:
            say(f"{source}: without effect on memory: {', '.join(names)}")
    if found.not_read:
        say(f"the launch line: not read: {', '.join(found.not_read)}")
    for each in found.supposed:
        say(f"taken: {each}")
    for each in found.chosen:
        say(f"note: {each}")


def say(line: str) -> None:
    """A sentence on standard error."""
    wrapped = textwrap.fill(line, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(wrapped, file=sys.stderr)
