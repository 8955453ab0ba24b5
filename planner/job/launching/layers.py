"""Finds the launch line inside of what starts it: schedulers, MPI, environments of Python, shells and their scripts."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from planner.errors import SpecError, shorten
from planner.job.launching import schedulers
from planner.job.launching.frameworks import FRAMEWORKS, CommandContext, TextOf
from planner.job.launching.launchers import PLACE, TABLES, read_options, refused, take_variables
from planner.job.launching.schedulers import Starter, Tasks
from planner.job.launching.script_calls import (
    BARE,
    ENVIRONMENT_TOOLS,
    PROJECT_TOOLS,
    SHELLS,
    STAND_INS,
    find_launch_call,
    set_beside,
    unset_variables,
)
from planner.job.launching.wrappers import WRAPPERS, on_host, read_mounts, read_wrapper
from planner.runtime.scripts import (
    LONGEST_VALUE,
    UNKNOWN,
    Call,
    RunScript,
    Script,
    can_be_started,
    mark,
    run_script,
)

_MOST_LAYERS = 20
_MOST_CHARACTERS = 1 << 20
"""Of a script, or of the words of a shell."""
_MOST_VARIABLES = 1000
_ADDRESSES: Mapping[str, str] = {
    "rdzv_endpoint": "127.0.0.1:29500", "master_addr": "127.0.0.1", "master_port": "29500", "rdzv_id": "none",
    "node_rank": "0", "machine_rank": "0", "main_process_ip": "127.0.0.1", "main_process_port": "29500",
    "local_addr": "127.0.0.1", "rdzv_conf": "", "role": "default", "nodelist": "", "w": "", "host": "", "job_id": "",
}  # fmt: skip
"""Options that say who meets where: on paper nobody does, so what only the job's machines know is not needed."""


@dataclass(frozen=True, slots=True)
class Surrounding:
    """What decides the Python of a command from around it: `uv run`, `conda run`, `source .venv/bin/activate`."""

    tool: str
    """By its name; `activate` for a virtual environment, whose folder is the option `prefix`."""
    options: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class Unwrapped:
    """A launcher's own words, and what stood around them."""

    words: list[str]
    text_of: TextOf
    inherited: Mapping[str, str]
    """Variables that a script finds when it is started."""
    environment: dict[str, str] = field(default_factory=dict)
    tasks: Tasks | None = None
    batch: Mapping[str, str | None] = field(default_factory=dict)
    """Options of the batch script."""
    folder: str = ""
    notes: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    """Which one it is, of several runs that a script or a job array starts, as sentences."""
    surrounding: Surrounding | None = None
    node_gpus: int = 0
    """That each node has, as the user says; 0: nobody has said."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Folders of this machine by where a container has them."""
    run_script: RunScript = run_script
    files: dict[str, str] = field(default_factory=dict)
    """Texts that scripts have written, by their paths."""
    root: str = ""
    """The folder in which a script was started."""
    given: str = ""
    """What the command reads from its standard input, where a script says that."""
    passed_over: list[str] = field(default_factory=list)
    """Options that are not known, and are a plug-in's."""

    @property
    def visible_gpus(self) -> int:
        """Those that CUDA_VISIBLE_DEVICES lists before the command, or in its script; 0 where it lists none."""
        visible = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        return visible.count(",") + 1 if re.fullmatch(r"\d+(,\d+)*", visible) else 0

    @property
    def gpus(self) -> int:
        """That the launcher of a node sees, as far as anybody has said; else 0."""
        return self.node_gpus or self.visible_gpus or (self.tasks.gpus if self.tasks else None) or 0

    def path_of(self, written: str) -> str:
        """Of a file that a command names, seen from where planner runs."""
        written = on_host(written, self.mounts)
        return f"{self.folder}/{written}" if self.folder and not written.startswith("/") else written

    def seen(self, path: str) -> str:
        """A path of :meth:`path_of`, from the folder that was reached."""
        return os.path.relpath(path, self.folder) if self.folder and not path.startswith("/") else path

    def read(self, written: str) -> str:
        """The text of a file that a command names. Raises SpecError where there is none to read."""
        path = os.path.normpath(os.path.join(self.root, self.path_of(written)))
        text = self.files.get(path)
        return text if text is not None else self.text_of(path.removeprefix(f"{self.root}/") if self.root else path)

    def enter_container(self, mounts: Mapping[str, str], folder: str) -> None:
        """What a container has of this machine, and where it starts its command."""
        self.mounts |= mounts
        if folder.startswith("/") and on_host(folder, self.mounts) == folder and not UNKNOWN.search(folder):
            self.notes += (f"{folder} of the container is assumed to be the folder that is here",)
        else:
            self.enter(folder)

    def enter(self, folder: str | None) -> None:
        """Goes to a folder, seen from the one that was reached."""
        folder = on_host(folder or "", self.mounts)
        if folder and folder != ".":
            self.folder = folder if folder.startswith("/") or not self.folder else f"{self.folder}/{folder}"


def local_text(path: str) -> str:
    """The text of a file of this machine. Raises SpecError where there is none to read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", allowed="a text file", place=path) from None


def unwrap(
    words: Sequence[str],
    text_of: TextOf,
    inherited: Mapping[str, str],
    node_gpus: int = 0,
    run_script: RunScript = run_script,
) -> Unwrapped:
    """The words of the launcher itself. `inherited`: variables that a script finds when it is started; `node_gpus`:
    of each node, 0 where nobody has said.

    Raises SpecError for what only a shell or the job's machine decides, and for options that are not known.
    """
    layers = Unwrapped(
        [UNKNOWN.sub("", word) for word in words], text_of, inherited, node_gpus=node_gpus, run_script=run_script
    )
    for _ in range(_MOST_LAYERS):
        if not _peel(layers):
            break
    else:
        raise refused("the command is wrapped too often", f"up to {_MOST_LAYERS} times")
    layers.words = [on_host(word, layers.mounts) for word in _without_addresses(layers.words)]
    _refuse_unknown(layers.words)
    if layers.passed_over:
        options = ", ".join(dict.fromkeys(layers.passed_over))
        layers.notes += (f"options of Slurm that are not known here, and were passed over: {options}",)
    for name, value in layers.environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or not can_be_started(value):
            raise refused(
                f"{name[:80]!a} is not the name of a variable, or its value is too long",
                f"NAME=value, of {LONGEST_VALUE} characters",
            )
    if not all(map(can_be_started, (*layers.words, layers.folder))) or len(layers.environment) > _MOST_VARIABLES:
        raise refused("the command cannot be started", f"{_MOST_VARIABLES} variables, and words as a system has them")
    for name, value in [*layers.environment.items()]:
        if name in ("MASTER_ADDR", "MASTER_PORT") and not re.fullmatch(r"[0-9.]+", value):
            layers.environment[name] = _ADDRESSES[name.lower()]  # names of nodes are none here
        elif UNKNOWN.search(value):
            del layers.environment[name]
            sources = " and ".join(UNKNOWN.findall(value))
            layers.notes += (f"${name} comes from {sources}, which is not known here: the program runs without it",)
    return layers


def _refuse_unknown(words: Sequence[str]) -> None:
    """Raises SpecError for words that something decides which is not known."""
    if sources := " and ".join(dict.fromkeys(source for word in words for source in UNKNOWN.findall(word))):
        raise SpecError(
            f"{sources[:300]} decides a part of the launch line, and is not known here",
            allowed="values that the command, its script or the environment of planner says",
            remedy="--gpus NUMBER, or write the number"
            if "nvidia-smi" in sources or "device_count" in sources
            else "set it before the command (NAME=value ...), or write its value",
            place=PLACE,
        )


def _peel(layers: Unwrapped) -> bool:
    """Takes one layer off; whether there was one."""
    words = layers.words
    if not words:
        return False
    name = PurePosixPath(words[0]).name
    variables, command = take_variables(words)
    if variables:
        layers.environment.update(variables)
        layers.words = command
    elif (reader := _READERS.get(name)) is not None:
        try:
            return reader(layers, words[1:])
        except SpecError as error:
            if "ue000" in error.problem:  # a mark, as it is shown
                _refuse_unknown(words)
            raise
    elif name.endswith(".sh"):
        _script(layers, (), *words)
    elif name in BARE:
        layers.words = words[1:]
    else:
        return False
    return True


def _environment_tool(layers: Unwrapped, words: list[str]) -> bool:
    """`uv run`, `conda run`, and those without options that matter."""
    tool = PurePosixPath(layers.words[0]).name
    if words[:1] != ["run"]:
        return False
    options: dict[str, str | None] = {}
    rest = words[1:]
    if tool == "uv":
        options, rest = read_options(rest, TABLES["uv"])
        layers.enter(options.get("directory"))
        if {"s", "script"} & options.keys():
            rest = ["python", *rest]
        elif {"m", "module"} & options.keys():
            rest = ["python", "-m", *rest]
    elif tool in ("conda", "mamba", "micromamba"):
        tool = "conda"
        options, rest = read_options(rest, TABLES["conda"])
        layers.enter(options.get("cwd"))
    elif tool in PROJECT_TOOLS:
        options, rest = read_options(rest, TABLES["project"])
    layers.surrounding, layers.words = Surrounding(tool, options), rest
    return True


def _wrapper(layers: Unwrapped, words: list[str]) -> bool:
    inside = read_wrapper(PurePosixPath(layers.words[0]).name, words)
    if inside is None:
        return False
    layers.environment.update(inside.variables)
    layers.words = inside.command
    layers.enter_container(inside.mounts, inside.folder)
    return True


def _framework(layers: Unwrapped, words: list[str]) -> bool:
    found = CommandContext({**layers.inherited, **layers.environment}, layers.read, layers.gpus)
    comes_to = FRAMEWORKS[PurePosixPath(layers.words[0]).name](words, found)
    layers.notes += (f"{' '.join(layers.words[:2])} starts {shorten(' '.join(take_variables(comes_to)[1]), 120)}",)
    layers.words = comes_to
    return True


def _starter(layers: Unwrapped, words: list[str]) -> bool:
    if layers.tasks is not None and layers.tasks.starter is not Starter.BATCH:
        raise refused(f"{layers.tasks.starter} starts another of its kind", "one of srun and mpirun")
    if PurePosixPath(layers.words[0]).name == "srun":
        layers.tasks, options, layers.words = schedulers.read_srun(words, layers.batch, layers.passed_over)
        _take_slurm(layers, options)
    else:
        layers.tasks, exports, layers.words = schedulers.read_mpirun(words, layers.tasks)
        layers.environment.update(exports)
    return True


def _take_slurm(layers: Unwrapped, options: Mapping[str, str | None]) -> None:
    layers.enter(options.get("chdir"))
    layers.enter_container(read_mounts(options.get("container_mounts") or ""), options.get("container_workdir") or "")
    exports = (export.partition("=") for export in (options.get("export") or "").split(","))
    layers.environment.update({name: value for name, equals, value in exports if equals})


def _sbatch(layers: Unwrapped, words: list[str]) -> bool:
    options, rest = schedulers.read_sbatch(words, layers.passed_over)
    wrapped = options.get("wrap") or ("" if rest else layers.given)
    if not wrapped and not rest:
        raise refused("sbatch has no script", "sbatch SCRIPT")
    place = "--wrap" if "wrap" in options else rest[0] if rest else "the script that sbatch is given"
    text, path = wrapped or layers.read(rest[0]), "" if wrapped else layers.path_of(rest[0])
    layers.batch = {**schedulers.read_script_options(text, place, layers.passed_over), **options}
    layers.tasks = schedulers.count_tasks(layers.batch, Starter.BATCH)
    if array := layers.batch.get("array"):
        count, task = (layers.tasks.settings[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "ID"))
        layers.planned += (f"the job array {array} starts {place} {count} times: planned is its task {task}",)
    if layers.node_gpus and layers.tasks.gpus is None:
        layers.inherited = {**layers.inherited, "SLURM_GPUS_ON_NODE": str(layers.node_gpus)}
    _take_slurm(layers, layers.batch)
    script = ("-c", wrapped, "slurm_script") if wrapped else (layers.seen(path), *rest[1:])
    _run_script(layers, script, text, place, path)
    return True


def _ray(layers: Unwrapped, words: list[str]) -> bool:
    if words[:2] != ["job", "submit"]:
        return False
    layers.words, variables, folder = schedulers.read_submit(words[2:], layers.read)
    layers.environment.update(variables)
    layers.enter(folder)
    return True


def _shell(layers: Unwrapped, words: list[str]) -> bool:
    rest = deque(words)
    while rest and re.fullmatch(r"-[a-zA-Z]+|--\w+|\+[a-z]", rest[0]):
        option = rest.popleft()
        if option.startswith("-") and not option.startswith("--") and option.endswith("c") and rest:
            _run_script(layers, (*words[: len(words) - len(rest)], *rest), rest[0], f"{PLACE} (-c)")
            return True
        if option in ("-o", "-eo", "-euo", "-xeo", "-euxo") and rest:
            rest.popleft()
    if not rest:
        raise refused("the shell has no command", "bash SCRIPT, or bash -c 'COMMAND'")
    _script(layers, words[: len(words) - len(rest)], *rest)
    return True


def _script(layers: Unwrapped, options: Sequence[str], written: str, *arguments: str) -> None:
    _refuse_unknown([written])
    text, path = layers.read(written), layers.path_of(written)
    _run_script(layers, (*options, layers.seen(path), *arguments), text, written, path)


def _run_script(layers: Unwrapped, words: tuple[str, ...], text: str, place: str, path: str = "") -> None:
    if max(len(text), sum(map(len, words))) > _MOST_CHARACTERS or not all(map(can_be_started, words)):
        raise refused(
            f"the script or a word of it is too long: {len(text)} characters",
            f"a script of {_MOST_CHARACTERS}, words of {LONGEST_VALUE}",
            place=place,
        )
    tasks = layers.tasks
    variables = {**layers.inherited, **(tasks.variables(0) if tasks else {}), **layers.environment}
    of_tasks = _last_task(tasks, text) if tasks else {}
    script = Script(
        place=place,
        words=words,
        variables=variables,
        tried={**{name: mark(f"${name}") for name in unset_variables(text, variables)}, **of_tasks},
        folder=layers.folder,
        files={**layers.files, **({path: text} if path else {})},
        mounts=layers.mounts,
        gpus=layers.gpus,
        stand_ins=STAND_INS,
    )
    run = layers.run_script(script)
    layers.files |= run.files
    layers.root = run.root
    if run.asks_for_gpus:
        _refuse_unknown([mark("how many GPUs nvidia-smi or torch.cuda.device_count finds")])
    found = find_launch_call(run, place)
    is_compared = found.at < min(len(run.calls), len(run.tried))
    chosen = set_beside(found.call, run.tried[found.at], of_tasks) if is_compared else found.call
    layers.notes += found.notes
    layers.planned += found.planned
    for call in run.calls[: found.at]:
        layers.surrounding = _activation(call) or layers.surrounding
    layers.environment.update(chosen.environment)
    layers.words, layers.folder, layers.given = list(chosen.words), chosen.folder, chosen.given


def _activation(call: Call) -> Surrounding | None:
    """The environment that a command of a script makes the one of those after it."""
    match call.words:
        case ("source", path) if path.endswith("/bin/activate") and not UNKNOWN.search(path):
            return Surrounding("activate", {"prefix": path.removesuffix("/bin/activate")})
        case (("conda" | "mamba" | "micromamba"), "activate", name) if not UNKNOWN.search(name):
            return Surrounding("conda", {"name": name})
    return None


def _last_task(tasks: Tasks, text: str) -> dict[str, str]:
    """Variables of the last task that a script reads and that the first one has other values of."""
    first, last = tasks.variables(0), tasks.variables(max(tasks.count - 1, 0))
    return {name: value for name, value in last.items() if first[name] != value and re.search(rf"\b{name}\b", text)}


def _without_addresses(words: Sequence[str]) -> list[str]:
    """What only the job's machines know is replaced where it says who meets where."""
    replaced: list[str] = []
    for number, word in enumerate(words):
        before = words[number - 1].lstrip("-").replace("-", "_") if number else ""
        option, equals, value = word.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if UNKNOWN.search(word) and words[max(number - 1, 0)].startswith("-") and before in _ADDRESSES:
            replaced.append(_ADDRESSES[before])
        elif equals and UNKNOWN.search(value) and option.startswith("-") and name in _ADDRESSES:
            replaced.append(f"{option}={_ADDRESSES[name]}")
        else:
            replaced.append(word)
    return replaced


_READERS: Mapping[str, Callable[[Unwrapped, list[str]], bool]] = {
    **dict.fromkeys(ENVIRONMENT_TOOLS, _environment_tool),
    **dict.fromkeys(WRAPPERS, _wrapper),
    **dict.fromkeys(FRAMEWORKS, _framework),
    **dict.fromkeys(("srun", "mpirun", "mpiexec", "orterun"), _starter),
    **dict.fromkeys(SHELLS, _shell),
    "sbatch": _sbatch,
    "ray": _ray,
}
