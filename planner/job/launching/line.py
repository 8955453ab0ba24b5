"""Parses the command behind `planner run --`: launcher, its world, the program, and what its ranks' environment is."""

from __future__ import annotations

import os
import re
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from planner.errors import SpecError
from planner.job.launching.frameworks import TextOf
from planner.job.launching.launchers import (
    HOSTS,
    LAUNCHER_MODULES,
    OLD_LAUNCHER,
    PLACE,
    TABLES,
    count_of,
    deepspeed_size,
    read_options,
    refused,
    torchrun_size,
)
from planner.job.launching.layers import Unwrapped, local_text, unwrap
from planner.job.launching.schedulers import Starter, Tasks
from planner.job.size_limits import MOST_RANKS
from planner.job.yaml_text import read_yaml
from planner.runtime.environments.interpreters import python_of_command
from planner.runtime.launcher_parsers import ask_parser
from planner.runtime.scripts import RunScript, run_script
from planner.versions import installed_version, minor_of

_ALLOWED = (
    "python, torchrun, accelerate launch or deepspeed with the program and its arguments; tune run, llamafactory-cli "
    "train, axolotl train, swift sft, composer, fabric run, trl sft; before them srun, mpirun, sbatch, ray job submit, "
    "docker run, apptainer exec, nsys profile, uv run, conda run, env, bash -c, a script and their kind"
)
_REMEDIES = {
    "make": "give the command of its target (make -n TARGET prints it)",
    **dict.fromkeys(("sky", "kubectl", "helm", "argo"), "give the command that stands in its file, under run or args"),
    **dict.fromkeys(("qsub", "bsub", "condor_submit", "oarsub"), "give bash with the script that is submitted"),
    "docker-compose": "give the command of its service",
    "torchx": "give torchrun with the script and the counts of -j NODESxPROCESSES",
    "colossalai": "give torchrun with the same --nproc_per_node, --nnodes and script",
}
"""What to give in the place of commands that start a job which stands elsewhere."""
_MODULES = {"torchrun": "torch.distributed.run", "deepspeed": "deepspeed.launcher.runner"}
"""Of launchers' commands."""
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
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that its script has written and that it names, by their paths."""
    notes: tuple[str, ...] = ()
    """Sentences on what around it was not run, or is not known."""
    planned: tuple[str, ...] = ()
    """Which one it is, of several runs that a script or a job array starts, as sentences."""
    node_gpus: int = 0
    """That each node has, where somebody says so; 0: as many as it has ranks."""
    says_local_rank: bool = False
    """Whether torch.distributed.launch gives each rank its number in an argument."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def launched_words(self) -> tuple[str, ...]:
        """What its launcher is given."""
        end = ("--",) if self.program.startswith("-") else ()
        return (*self.launcher_words, *end, self.program, *self.arguments)

    @property
    def gpus(self) -> int:
        """That a rank sees."""
        if self.tasks is not None and self.tasks.gpus is not None:
            return self.tasks.gpus
        return self.node_gpus or self.processes_per_node

    @property
    def may_start_ranks(self) -> bool:
        """Whether it starts one process on a node, which may start ranks itself."""
        return self.launcher is Launcher.PYTHON and (self.tasks is None or self.tasks.per_node == 1)

    @property
    def most_ranks(self) -> int:
        """How many there may turn out to be, as far as the command and the GPUs say."""
        return self.nodes * max(self.gpus, self.processes_per_node) if self.may_start_ranks else self.world_size

    def with_ranks(self, nodes: int, per_node: int) -> LaunchLine:
        """With the ranks that the program was seen to start itself."""
        return replace(self, nodes=nodes, processes_per_node=per_node)


def parse(
    words: Sequence[str],
    text_of: TextOf = local_text,
    inherited: Mapping[str, str] | None = None,
    *,
    nodes: int = 1,
    node_gpus: int = 0,
    run_script: RunScript = run_script,
) -> LaunchLine:
    """The parts of a command. `text_of` gives the text of a file that it names, or raises SpecError; `inherited` are
    variables that a script in it may use, which `run_script` runs. The job has `nodes` with `node_gpus` each (0: nobody
    has said).

    Raises SpecError for a launcher or an option that is not known, and for a world whose size only the machine says.
    """
    unwrapped = unwrap(words, text_of, inherited or {}, node_gpus, run_script)
    tasks = unwrapped.tasks
    # What a launcher is not told it asks the machine, which is one of the job's.
    line = _count_ranks(find_launch(unwrapped), unwrapped, unwrapped.read)
    if tasks is not None:
        line = place_tasks(line, tasks)
    elif line.launcher is Launcher.PYTHON:
        line, node_gpus = replace(line, nodes=nodes), unwrapped.visible_gpus or node_gpus
    if line.world_size > MOST_RANKS:
        raise refused(f"it starts {line.world_size} ranks", f"up to {MOST_RANKS:,}")
    line = replace(
        line, tasks=tasks, environment=unwrapped.environment, folder=unwrapped.folder, notes=unwrapped.notes,
        node_gpus=node_gpus, files=unwrapped.files, planned=unwrapped.planned,
    )  # fmt: skip
    if node_gpus and line.processes_per_node > node_gpus:
        raise SpecError(
            f"it starts {line.processes_per_node} ranks on a node, which has {node_gpus} GPUs",
            allowed="a rank for each GPU, or fewer",
            remedy=f"--gpus {line.processes_per_node}, or fewer ranks",
            place=PLACE,
        )
    return line


def place_tasks(line: LaunchLine, tasks: Tasks) -> LaunchLine:
    """The line as srun, mpirun or a batch script starts it. Raises SpecError where the two do not go together."""
    is_batch = tasks.starter is Starter.BATCH
    starts_nodes = line.launcher is Launcher.DEEPSPEED and bool(line.options.keys() & HOSTS)
    if is_batch and line.nodes > 1 and not starts_nodes:
        raise refused(f"{line.launcher} is started on the first of {line.nodes} nodes only", "srun before it")
    if not is_batch and line.launcher is Launcher.PYTHON:
        return replace(line, nodes=tasks.nodes, processes_per_node=tasks.per_node)
    if not is_batch and tasks.count != line.nodes:
        raise refused(
            f"{tasks.starter} starts {tasks.count} processes of {line.launcher}, which says {line.nodes} nodes",
            "one process on each node",
        )
    return line


def find_launch(unwrapped: Unwrapped) -> LaunchLine:
    """The launcher with its options, and the program; neither how many ranks there are nor what stood around it.

    Raises SpecError for a launcher or an option that is not known, and for a line without a program.
    """
    command, environment = list(unwrapped.words), unwrapped.environment
    name = PurePosixPath(command[0]).name if command else ""
    if name in _MODULES:
        return _read_launcher(_MODULES[name], command[1:])
    if name == "accelerate" and command[1:2] == ["launch"]:
        return _read_launcher("accelerate.commands.launch", command[2:])
    is_python = re.fullmatch(r"python[0-9.]*", name) is not None
    if not is_python and not name.endswith(".py"):
        looks = bool(command) and unwrapped.text_of is local_text
        script = shutil.which(command[0], path=environment.get("PATH")) if looks else None
        if script and python_of_command(script, Path(), os.environ):  # what pip installs for a command of a package
            program, arguments = os.path.abspath(script), tuple(command[1:])
            return LaunchLine(launcher=Launcher.PYTHON, program=program, arguments=arguments)
        remedy = "put the command that starts the ranks behind --"
        if unwrapped.surrounding is not None:
            remedy = "give the command that this task stands for"
        raise SpecError(
            f"the command starts {command[0][:100] if command else 'nothing'!a}, which is not a known launcher",
            allowed=_ALLOWED,
            remedy=_REMEDIES.get(name, remedy),
            place=PLACE,
        )
    words = deque(command[1:] if is_python else command)
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        option = words.popleft()
        if option in _PYTHON_WITH_VALUE and words:
            words.popleft()
        elif not set(option[1:]) <= _PYTHON_ALONE and not option.startswith(("-W", "-X")):
            raise refused(f"python has the option {option}", "the usual options of python before the program")
    rest = list(words)
    is_module = rest[:1] == ["-m"]
    if is_module and rest[1:2] and rest[1] in LAUNCHER_MODULES:
        launched = _read_launcher(rest[1], rest[2:])
        return replace(launched, says_local_rank=rest[1] == OLD_LAUNCHER and "use_env" not in launched.options)
    if rest[:1] in (["-c"], ["-"]):
        raise refused("the program stands in the command itself", "a file, or a module after -m")
    program, arguments = _program(rest[1:] if is_module else rest)
    return LaunchLine(launcher=Launcher.PYTHON, program=program, is_module=is_module, arguments=arguments)


def _read_launcher(module: str, words: Sequence[str]) -> LaunchLine:
    """Its own parser reads the line, unless it is of the version that its table was written from, or not here."""
    launcher, table = Launcher(LAUNCHER_MODULES[module]), TABLES[module]
    if minor_of(installed_version(table.package)) in ("", table.version):
        options, rest = read_options(words, table)
    else:
        options, rest = ask_parser(module, words)
    program, arguments = _program(rest)
    if arguments[:1] == ("--",):  # argparse takes it for the end of the launcher's own
        arguments = arguments[1:]
    return LaunchLine(
        launcher=launcher,
        program=program,
        is_module=bool(({"module"} if launcher is Launcher.DEEPSPEED else {"m", "module"}) & options.keys()),
        arguments=arguments,
        options=options,
        launcher_words=tuple(words[: len(words) - len(rest)]),
    )


def _count_ranks(line: LaunchLine, unwrapped: Unwrapped, text_of: TextOf) -> LaunchLine:
    """With the nodes and processes that its options, its environment, its files and the GPUs of a node come to."""
    launcher, options, tasks, node_gpus = line.launcher, line.options, unwrapped.tasks, unwrapped.gpus
    if launcher is Launcher.PYTHON:
        return line
    if launcher is Launcher.TORCHRUN:
        if {"no_python", "run_path"} & options.keys():
            raise refused("torchrun has --no-python or --run-path", "a Python program, or a module after -m")
        nodes, processes = torchrun_size(options, unwrapped.environment, node_gpus)
    elif launcher is Launcher.DEEPSPEED:
        if "no_python" in options:
            raise refused("deepspeed has --no_python", "a Python program, or a module after --module")
        named_nodes, gpus = deepspeed_size(options)
        if options.keys() & {"H", "hostfile"} and not (named_nodes and gpus):
            named_nodes, gpus = _count_hosts(options, text_of, named_nodes, gpus)
            if tasks is not None and not named_nodes:  # the file is on the cluster alone: it lists the job's nodes
                named_nodes = tasks.job_nodes if tasks.starter is Starter.BATCH else tasks.nodes
        processes = gpus or node_gpus or _missing("--num_gpus")
        nodes = named_nodes or (1 if node_gpus and not options.keys() & HOSTS else _missing("--num_nodes"))
    else:
        # Whatever else an option says is accelerate's own to read; it decides the environment of its ranks.
        given: dict[str, Any] = dict(options)
        if (path := options.get("config_file")) is not None:
            config = read_yaml(text_of(path), path).plain()
            if not isinstance(config, Mapping):
                raise SpecError("must be a mapping", allowed="accelerate's config file", place=path)
            given = {**config, **options}
        nodes = count_of("--num_machines", str(given.get("num_machines") or 1))
        said = given.get("num_processes") or nodes * node_gpus or _missing("--num_processes")
        count = count_of("--num_processes", str(said))
        if count % nodes:
            raise refused(f"{count} processes on {nodes} machines", "as many processes on each machine")
        processes = count // nodes
    return replace(line, nodes=nodes, processes_per_node=processes)


def _count_hosts(
    options: Mapping[str, str | None], text_of: TextOf, nodes: int | None, gpus: int | None
) -> tuple[int | None, int | None]:
    """Nodes and GPUs of each, of a file of hosts with their slots, as far as the command does not say them."""
    path = options.get("hostfile") or options.get("H") or ""
    try:
        text = text_of(path)
    except SpecError:
        return nodes, gpus
    hosts = dict(re.findall(r"^\s*([^\s#]+)\s+slots=([0-9]{1,6})", text, re.MULTILINE))
    left_out = (options.get("e") or options.get("exclude") or "").split("@")
    for host in [host for host in left_out if ":" not in host]:
        hosts.pop(host, None)
    if included := (options.get("i") or options.get("include") or ""):
        hosts = {name: hosts[name] for name in included.split("@") if name in hosts}
    slots = {int(count) for count in hosts.values()}
    if (gpus is None and len(slots) != 1) or any(":" in host for host in left_out):
        raise SpecError(
            f"its hosts have {', '.join(map(str, sorted(slots))) or 'no'} slots, and which are used is not read",
            allowed="lines `HOST slots=NUMBER` with the same number",
            remedy="--num_nodes NUMBER --num_gpus NUMBER",
            place=path,
        )
    return nodes or len(hosts), gpus or slots.pop()


def _program(words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    if not words:
        raise refused("the command has no program", "the whole command, with the program and its arguments")
    return words[0], tuple(words[1:])


def _missing(name: str) -> NoReturn:
    raise refused(
        f"how many ranks there are is not said, and this machine's GPUs do not decide it: {name} is missing",
        f"{name} NUMBER, or planner run --gpus NUMBER",
    )
