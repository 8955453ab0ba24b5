"""Parses the command behind `planner run --`: launcher, its world, and the program with its arguments.

Options are those of torch 2.13 (torch/distributed/run.py), accelerate 1.15 (commands/launch.py) and DeepSpeed 0.19
(launcher/runner.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from planner.errors import SpecError
from planner.importers.launch_lines import ACCELERATE_ALONE, TORCHRUN_ALONE, TORCHRUN_WITH_VALUE, unknown_option
from planner.job.yaml_text import read_yaml

PLACE = "the command behind --"
_ALLOWED = "python, torchrun, accelerate launch or deepspeed, with the program and its arguments"
_PYTHON_ALONE = frozenset("BEIOPRSbdhisuqvx")
_PYTHON_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_MOST_RANKS = 1 << 20
_DEEPSPEED_WITH_VALUE = frozenset({
    "H", "hostfile", "i", "include", "e", "exclude", "num_nodes", "min_elastic_nodes", "max_elastic_nodes", "num_gpus",
    "master_port", "master_addr", "node_rank", "launcher", "launcher_args", "venv_script", "autotuning",
    "elastic_training", "enable_each_rank_log", "bind_core_list", "ssh_port",
})  # fmt: skip
_DEEPSPEED_ALONE = frozenset({
    "module", "no_python", "no_local_rank", "no_ssh_check", "force_multi", "save_pid", "bind_cores_to_rank", "no_ssh",
})  # fmt: skip


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

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node


def parse(words: Sequence[str]) -> LaunchLine:
    """The parts of a command. Raises SpecError for a launcher or an option that is not known, and for a world whose
    size only the machine says."""
    command, environment = _environment(words)
    if not command:
        raise _no_launcher("nothing")
    name = PurePosixPath(command[0]).name
    if name == "torchrun":
        return _torchrun(command[1:], environment)
    if name == "accelerate" and command[1:2] == ["launch"]:
        return _accelerate(command[2:], environment)
    if name == "deepspeed":
        return _deepspeed(command[1:], environment)
    if re.fullmatch(r"python[0-9.]*", name):
        return _python(command[1:], environment)
    if name.endswith(".py"):
        return _python(command, environment)
    raise _no_launcher(command[0])


def _environment(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    found: dict[str, str] = {}
    rest = list(words[1:] if words and words[0] == "env" else words)
    while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
        found[match[1]] = match[2]
        rest = rest[1:]
    return rest, found


def _python(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        if rest[0] in _PYTHON_WITH_VALUE:
            rest = rest[1:]
        elif not set(rest[0][1:]) <= _PYTHON_ALONE and not rest[0].startswith(("-W", "-X")):
            raise _refused(f"python has the option {rest[0]}", "the usual options of python before the program")
        rest = rest[1:]
    behind = {
        "torch.distributed.run": _torchrun,
        "torch.distributed.launch": _torchrun,
        "accelerate.commands.launch": _accelerate,
        "deepspeed.launcher.runner": _deepspeed,
    }
    if rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in behind:
        return behind[rest[1]](rest[2:], environment)
    if rest[:1] in (["-c"], ["-"]):
        raise _refused("the program stands in the command itself", "a file, or a module after -m")
    is_module = rest[:1] == ["-m"]
    program, arguments = _program(rest[1:] if is_module else rest)
    return LaunchLine(
        launcher=Launcher.PYTHON, program=program, is_module=is_module, arguments=arguments, environment=environment
    )


def _torchrun(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    options, rest = _options(words, TORCHRUN_WITH_VALUE, TORCHRUN_ALONE, "torchrun of torch 2.13")
    if {"no_python", "run_path"} & options.keys():
        raise _refused("torchrun has --no-python or --run-path", "a Python program, or a module after -m")
    program, arguments = _program(rest)
    return LaunchLine(
        launcher=Launcher.TORCHRUN,
        program=program,
        is_module=bool({"m", "module"} & options.keys()),
        arguments=arguments,
        nodes=_nodes(options.get("nnodes") or "1"),
        processes_per_node=_count("--nproc-per-node", options.get("nproc_per_node") or "1"),
        options=options,
        launcher_words=_before(words, rest),
        environment=environment,
    )


def _accelerate(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    """Whatever else an option says is accelerate's own to read; it decides the environment of its ranks."""
    options, rest = _options(words, None, ACCELERATE_ALONE, "accelerate launch")
    said: dict[str, Any] = {**_accelerate_config(options.get("config_file")), **options}
    processes = _count("--num_processes", str(said.get("num_processes") or _missing("--num_processes")))
    nodes = _count("--num_machines", str(said.get("num_machines") or 1))
    if processes % nodes:
        raise _refused(f"{processes} processes on {nodes} machines", "as many processes on each machine")
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


def _accelerate_config(path: str | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", allowed="accelerate's config file", place=path) from None
    found = read_yaml(text, path).plain()
    if not isinstance(found, Mapping):
        raise SpecError("is no mapping", allowed="accelerate's config file", place=path)
    return found


def _deepspeed(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
    options, rest = _options(words, _DEEPSPEED_WITH_VALUE, _DEEPSPEED_ALONE, "deepspeed 0.19")
    if "no_python" in options:
        raise _refused("deepspeed has --no_python", "a Python program, or a module after --module")
    program, arguments = _program(rest)
    return LaunchLine(
        launcher=Launcher.DEEPSPEED,
        program=program,
        is_module="module" in options,
        arguments=arguments,
        nodes=_count("--num_nodes", options.get("num_nodes") or "1"),
        processes_per_node=_count("--num_gpus", options.get("num_gpus") or _missing("--num_gpus")),
        options=options,
        launcher_words=_before(words, rest),
        environment=environment,
    )


def _options(
    words: Sequence[str], with_value: frozenset[str] | None, alone: frozenset[str], program: str
) -> tuple[dict[str, str | None], Sequence[str]]:
    """Options up to the program, and what follows. `with_value` None: every option that is not alone has one."""
    found: dict[str, str | None] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        written, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = written.replace("-", "_")
        if name in alone:
            found[name] = None
        elif with_value is not None and name not in with_value:
            raise unknown_option(name, program)
        elif equals:
            found[name] = value
        elif rest:
            found[name] = rest.pop(0)
        else:
            raise _refused(f"--{written} has no value", f"--{written} VALUE")
    return found, rest[1:] if rest[:1] == ["--"] else rest


def _before(words: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[: len(words) - len(rest)])


def _program(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not words:
        raise _refused("the command has no program", "the whole command, with the program and its arguments")
    return words[0], tuple(words[1:])


def _nodes(written: str) -> int:
    least, _, most = written.partition(":")
    if most and most != least:
        raise _refused(f"--nnodes is {written}: the number of nodes changes while the job runs", "a number")
    return _count("--nnodes", least)


def _count(name: str, written: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", written) or not 0 < int(written) <= _MOST_RANKS:
        raise _refused(f"{name} is {written[:40]!a}", f"a whole number from 1 to {_MOST_RANKS:,}")
    return int(written)


def _missing(name: str) -> str:
    raise _refused(
        f"how many ranks there are is not said, and this machine's GPUs do not decide it: {name} is missing",
        f"{name} NUMBER",
    )


def _refused(problem: str, allowed: str) -> SpecError:
    return SpecError(problem, allowed=allowed, remedy="write the command as it would run on the cluster", place=PLACE)


def _no_launcher(word: str) -> SpecError:
    return SpecError(
        f"the command starts {word[:100]!a}, which is no launcher that is understood",
        allowed=_ALLOWED,
        remedy="put the command that starts the ranks behind --",
        place=PLACE,
    )
