"""Parses the command behind `planner run --`: launcher, its world, and the program with its arguments.

What stands around the launcher is taken off first (planner.running.launch_wrappers); its options are those of
planner.importers.launch_options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from planner.errors import SpecError
from planner.importers.launch_options import (
    LAUNCHER_OPTIONS,
    PLACE,
    count_of,
    deepspeed_size,
    read_options,
    refused,
)
from planner.job.size_limits import MOST_RANKS
from planner.job.yaml_text import read_yaml
from planner.running.launch_wrappers import unwrap
from planner.running.task_launch import Starter, Tasks

_ALLOWED = (
    "python, torchrun, accelerate launch or deepspeed with the program and its arguments; before them srun, mpirun, "
    "sbatch, ray job submit, uv run, conda run, env, bash -c or a script"
)
_PYTHON_ALONE = frozenset("BEIOPRSbdhisuqvx")
_PYTHON_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Launcher(StrEnum):
    """Who starts the ranks, and so sets their environment."""

    PYTHON = "python"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What is started: `program` is a path, or with `is_module` the name of a module."""

    launcher: Launcher
    program: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    nodes: int = 1
    processes_per_node: int = 1
    options: Mapping[str, str | None] = field(default_factory=dict)
    """Of the launcher, by their names with underscores; None for those without a value."""
    launcher_words: tuple[str, ...] = ()
    """The launcher's own options as they were written."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that stood before the command."""
    tasks: Tasks | None = None
    """Processes of srun or mpirun: each is a rank, or the launcher of a node's ranks."""
    folder: str = ""
    """Where it is started, seen from here."""
    notes: tuple[str, ...] = ()
    """Sentences on what around it was not run, or is not known."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def gpus(self) -> int:
        """That a rank sees."""
        return self.processes_per_node if self.tasks is None or self.tasks.gpus is None else self.tasks.gpus


def local_text(path: str) -> str:
    """The text of a file of this machine. Raises SpecError where there is none to read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", allowed="a text file", place=path) from None


def parse(
    words: Sequence[str], text_of: Callable[[str], str] = local_text, inherited: Mapping[str, str] | None = None
) -> LaunchLine:
    """The parts of a command. `text_of` gives the text of a file that it names, or raises SpecError; `inherited` are
    variables that a script in it may use.

    Raises SpecError for a launcher or an option that is not known, and for a world whose size only the machine says.
    """
    found = unwrap(words, text_of, inherited or {})
    line = _within(_launcher(list(found.words), found.environment, text_of), found.tasks)
    if line.world_size > MOST_RANKS:
        raise refused(f"it starts {line.world_size} ranks", f"up to {MOST_RANKS:,}")
    return replace(line, folder=found.folder, notes=found.notes)


def _launcher(command: list[str], environment: Mapping[str, str], text_of: Callable[[str], str]) -> LaunchLine:
    if not command:
        raise _no_launcher("nothing")
    name = PurePosixPath(command[0]).name
    if name == "torchrun":
        return _torchrun(command[1:], environment)
    if name == "accelerate" and command[1:2] == ["launch"]:
        return _accelerate(command[2:], environment, text_of)
    if name == "deepspeed":
        return _deepspeed(command[1:], environment)
    if re.fullmatch(r"python[0-9.]*", name):
        return _python(command[1:], environment, text_of)
    if name.endswith(".py"):
        return _python(command, environment, text_of)
    raise _no_launcher(command[0])


def _within(line: LaunchLine, tasks: Tasks | None) -> LaunchLine:
    """The line as what each process of srun or mpirun runs."""
    if tasks is None:
        return line
    if tasks.starter is Starter.BATCH and line.nodes > 1:
        raise refused(f"{line.launcher} is started on the first of {line.nodes} nodes only", "srun before it")
    if tasks.starter is not Starter.BATCH and line.launcher is Launcher.PYTHON:
        return replace(line, nodes=tasks.nodes, processes_per_node=tasks.per_node, tasks=tasks)
    if tasks.starter is not Starter.BATCH and tasks.count != line.nodes:
        raise refused(
            f"{tasks.starter} starts {tasks.count} processes of {line.launcher}, which says {line.nodes} nodes",
            "one process on each node",
        )
    return replace(line, tasks=tasks)


def _python(words: Sequence[str], environment: Mapping[str, str], text_of: Callable[[str], str]) -> LaunchLine:
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        if rest[0] in _PYTHON_WITH_VALUE:
            rest = rest[1:]
        elif not set(rest[0][1:]) <= _PYTHON_ALONE and not rest[0].startswith(("-W", "-X")):
            raise refused(f"python has the option {rest[0]}", "the usual options of python before the program")
        rest = rest[1:]
    behind: Mapping[str, Callable[[Sequence[str], Mapping[str, str]], LaunchLine]] = {
        "torch.distributed.run": _torchrun,
        "torch.distributed.launch": _torchrun,
        "accelerate.commands.launch": partial(_accelerate, text_of=text_of),
        "deepspeed.launcher.runner": _deepspeed,
    }
    if rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in behind:
        return behind[rest[1]](rest[2:], environment)
    if rest[:1] in (["-c"], ["-"]):
        raise refused("the program stands in the command itself", "a file, or a module after -m")
    is_module = rest[:1] == ["-m"]
    program, arguments = _program(rest[1:] if is_module else rest)
    return LaunchLine(
        launcher=Launcher.PYTHON, program=program, is_module=is_module, arguments=arguments, environment=environment
    )


def _torchrun(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    options, rest = read_options(words, *LAUNCHER_OPTIONS["torchrun"])
    if {"no_python", "run_path"} & options.keys():
        raise refused("torchrun has --no-python or --run-path", "a Python program, or a module after -m")
    program, arguments = _program(rest)
    return LaunchLine(
        launcher=Launcher.TORCHRUN,
        program=program,
        is_module=bool({"m", "module"} & options.keys()),
        arguments=arguments,
        nodes=_nodes(options.get("nnodes") or "1"),
        processes_per_node=count_of("--nproc-per-node", options.get("nproc_per_node") or "1"),
        options=options,
        launcher_words=_before(words, rest),
        environment=environment,
    )


def _accelerate(words: Sequence[str], environment: Mapping[str, str], text_of: Callable[[str], str]) -> LaunchLine:
    """Whatever else an option says is accelerate's own to read; it decides the environment of its ranks."""
    options, rest = read_options(words, *LAUNCHER_OPTIONS["accelerate"])
    said: dict[str, Any] = {**_accelerate_config(options.get("config_file"), text_of), **options}
    processes = count_of("--num_processes", str(said.get("num_processes") or _missing("--num_processes")))
    nodes = count_of("--num_machines", str(said.get("num_machines") or 1))
    if processes % nodes:
        raise refused(f"{processes} processes on {nodes} machines", "as many processes on each machine")
    program, arguments = _program(rest)
    return LaunchLine(
        launcher=Launcher.ACCELERATE,
        program=program,
        is_module=bool({"m", "module"} & options.keys()),
        arguments=arguments,
        nodes=nodes,
        processes_per_node=processes // nodes,
        options=options,
        launcher_words=_before(words, rest),
        environment=environment,
    )


def _accelerate_config(path: str | None, text_of: Callable[[str], str]) -> Mapping[str, Any]:
    if path is None:
        return {}
    found = read_yaml(text_of(path), path).plain()
    if not isinstance(found, Mapping):
        raise SpecError("is no mapping", allowed="accelerate's config file", place=path)
    return found


def _deepspeed(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    options, rest = read_options(words, *LAUNCHER_OPTIONS["deepspeed"])
    if "no_python" in options:
        raise refused("deepspeed has --no_python", "a Python program, or a module after --module")
    nodes, gpus = deepspeed_size(options)
    gpus = gpus or _missing("--num_gpus")
    program, arguments = _program(rest)
    return LaunchLine(
        launcher=Launcher.DEEPSPEED,
        program=program,
        is_module="module" in options,
        arguments=arguments,
        nodes=nodes or _missing("--num_nodes"),
        processes_per_node=gpus,
        options=options,
        launcher_words=_before(words, rest),
        environment=environment,
    )


def _before(words: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[: len(words) - len(rest)])


def _program(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not words:
        raise refused("the command has no program", "the whole command, with the program and its arguments")
    return words[0], tuple(words[1:])


def _nodes(written: str) -> int:
    least, _, most = written.partition(":")
    if most and most != least:
        raise refused(f"--nnodes is {written}: the number of nodes changes while the job runs", "a number")
    return count_of("--nnodes", least)


def _missing(name: str) -> NoReturn:
    raise refused(
        f"how many ranks there are is not said, and this machine's GPUs do not decide it: {name} is missing",
        f"{name} NUMBER",
    )


def _no_launcher(word: str) -> SpecError:
    return SpecError(
        f"the command starts {word[:100]!a}, which is no launcher that is understood",
        allowed=_ALLOWED,
        remedy="put the command that starts the ranks behind --",
        place=PLACE,
    )
