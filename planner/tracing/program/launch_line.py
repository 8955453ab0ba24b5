"""Parses the command behind `planner run --`: launcher, its world, the program, and what its ranks' environment is."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from planner.errors import SpecError
from planner.job.importers.launch_lines import (
    LAUNCHER_OPTIONS,
    PLACE,
    count_of,
    deepspeed_size,
    read_options,
    refused,
)
from planner.job.size_limits import MOST_RANKS
from planner.job.yaml_text import read_yaml
from planner.runtime.environments.interpreters import (
    python_in,
    python_of_command,
    python_of_conda,
    python_of_project,
)
from planner.tracing.program.launch_wrappers import Surrounding, unwrap
from planner.tracing.program.scheduler_lines import Starter, Tasks

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
        return _torchrun_line(command[1:], environment)
    if name == "accelerate" and command[1:2] == ["launch"]:
        return _accelerate(command[2:], environment, text_of)
    if name == "deepspeed":
        return _deepspeed_line(command[1:], environment)
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
        "torch.distributed.run": _torchrun_line,
        "torch.distributed.launch": _torchrun_line,
        "accelerate.commands.launch": partial(_accelerate, text_of=text_of),
        "deepspeed.launcher.runner": _deepspeed_line,
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


def _torchrun_line(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
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


def _deepspeed_line(words: Sequence[str], environment: Mapping[str, str]) -> LaunchLine:
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


_ADDRESS, _PORT = "127.0.0.1", "29500"


# Variables of torchrun: torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py; of deepspeed:
# 0.19.8, launcher/launch.py. Those of accelerate are accelerate's own, which is asked for them.
@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank stands in its world."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    nodes: int


def place_of(line: LaunchLine, rank: int) -> RankPlace:
    """The place of a rank: nodes are filled one after the other, as every launcher here does."""
    per_node = line.processes_per_node
    return RankPlace(rank, line.world_size, rank % per_node, per_node, rank // per_node, line.nodes)


def rank_variables(line: LaunchLine, rank: int) -> dict[str, str]:
    """What the launcher sets for this rank, besides what it inherits; for accelerate without accelerate's own."""
    place = place_of(line, rank)
    if line.tasks is None:
        return _by_launcher(line, place)
    task = rank if line.launcher is Launcher.PYTHON else place.node
    return {**line.tasks.variables(task), **_by_launcher(line, place)}


def _by_launcher(line: LaunchLine, place: RankPlace) -> dict[str, str]:
    match line.launcher:
        case Launcher.PYTHON:
            return {}
        case Launcher.TORCHRUN:
            return _torchrun_variables(place, line.options)
        case Launcher.ACCELERATE:
            # A single process is started without torchrun, and has no world.
            return _torchrun_variables(place, {}) if place.world_size > 1 else {}
        case Launcher.DEEPSPEED:
            return _deepspeed_variables(place, line.options)


def extra_arguments(line: LaunchLine, rank: int) -> tuple[str, ...]:
    """What the launcher puts before the program's arguments."""
    if line.launcher is not Launcher.DEEPSPEED or "no_local_rank" in line.options:
        return ()
    return (f"--local_rank={place_of(line, rank).local_rank}",)


def _torchrun_variables(place: RankPlace, options: Mapping[str, str | None]) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(place.world_size),
        "ROLE_NAME": options.get("role") or "default",
        "MASTER_ADDR": options.get("master_addr") or _ADDRESS,
        "MASTER_PORT": options.get("master_port") or _PORT,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": options.get("max_restarts") or "0",
        "TORCHELASTIC_RUN_ID": options.get("rdzv_id") or "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _deepspeed_variables(place: RankPlace, options: Mapping[str, str | None]) -> dict[str, str]:
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_SIZE": str(place.local_world_size),
        "CROSS_RANK": str(place.node),
        "CROSS_SIZE": str(place.nodes),
        "MASTER_ADDR": options.get("master_addr") or _ADDRESS,
        "MASTER_PORT": options.get("master_port") or _PORT,
    }


def accelerate_variables(line: LaunchLine) -> Mapping[str, str]:
    """What accelerate 1.15 sets for every rank (commands/launch.py, utils/launch.py), to be called where a GPU is seen.

    Raises SpecError for options that accelerate refuses, and where it is not installed.
    """
    try:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        environments: Any = importlib.import_module("accelerate.utils.launch")
    except ImportError:
        raise SpecError("accelerate is not installed", remedy="pip install accelerate", place=PLACE) from None
    words = [*line.launcher_words, *(["--"] if line.program.startswith("-") else []), line.program, *line.arguments]
    try:
        arguments = launch.launch_command_parser().parse_args(words)
        arguments, defaults, precision_from_config = launch._validate_launch_command(arguments)
        if arguments.use_deepspeed:
            fields = list(defaults.deepspeed_config) if defaults else []
            fields += ["mixed_precision"] if precision_from_config else []
            arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
            found = environments.prepare_deepspeed_cmd_env(arguments)[1]
        elif line.world_size > 1 or arguments.use_fsdp:
            found = environments.prepare_multi_gpu_env(arguments)
        else:
            found = environments.prepare_simple_launcher_cmd_env(arguments)[1]
    except (SystemExit, ValueError) as error:
        raise SpecError(
            f"accelerate refuses its options: {error}", allowed="what accelerate launch takes", place=PLACE
        ) from None
    return {name: value for name, value in found.items() if os.environ.get(name) != value}


def find_python(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """The path of the Python, started with these variables; empty where the command names none that is here."""
    found = unwrap(words, local_text, environment)
    if not found.words:
        return ""
    folder = Path(found.folder)
    around = {**environment, **found.environment}
    if found.surrounding is None or "/" in found.words[0]:
        python = python_of_command(found.words[0], folder, around)
    else:
        python = _READERS.get(found.surrounding.tool, _of_project)(found.surrounding, folder, around)
    return os.path.abspath(python) if python else ""


def _of_uv(uv: Surrounding, folder: Path, environment: Mapping[str, str]) -> str:
    """The project's own; one that uv makes for this command alone (`--with`) is not there before or after it."""
    options = uv.options
    if {"with", "w", "with_requirements", "with_editable", "isolated"} & options.keys():
        return ""
    if "active" in options and environment.get("VIRTUAL_ENV"):
        return python_in(Path(environment["VIRTUAL_ENV"]))
    named = options.get("python") or options.get("p") or ""
    if "/" in named:
        return python_in(folder / named) or python_of_command(named, folder, environment)
    inside = environment.get("UV_PROJECT_ENVIRONMENT") or ".venv"
    return python_of_project(folder / (options.get("project") or ""), inside)


def _of_conda(conda: Surrounding, folder: Path, environment: Mapping[str, str]) -> str:
    options = conda.options
    name, prefix = (options.get("n") or options.get("name")), (options.get("p") or options.get("prefix"))
    if not name and not prefix:
        prefix = environment.get("CONDA_PREFIX")
    return python_of_conda(name or "base", prefix or "", folder, environment)


def _of_pixi(_pixi: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_of_project(folder, ".pixi/envs/default")


def _of_project(_tool: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_of_project(folder)


def _of_activated(activated: Surrounding, folder: Path, _environment: Mapping[str, str]) -> str:
    return python_in(folder / Path(activated.options["prefix"] or "").expanduser())


_READERS: Mapping[str, Callable[[Surrounding, Path, Mapping[str, str]], str]] = {
    "uv": _of_uv,
    "conda": _of_conda,
    "mamba": _of_conda,
    "micromamba": _of_conda,
    "pixi": _of_pixi,
    "activate": _of_activated,
}
