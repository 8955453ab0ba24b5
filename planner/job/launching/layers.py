"""Finds the launch line inside of what starts it: schedulers, MPI, environments of Python, shells and their scripts."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePosixPath

from planner.errors import SpecError, shorten
from planner.job.launching import schedulers
from planner.job.launching.frameworks import FRAMEWORKS, CommandContext, TextOf
from planner.job.launching.launchers import LAUNCHER_MODULES, PLACE, TABLES, read_options, refused, take_variables
from planner.job.launching.schedulers import Starter, Tasks, job_variables
from planner.job.launching.shell_script import Statement, follow_script
from planner.job.launching.shell_values import UNKNOWN, Shell, unknown_source
from planner.job.launching.wrappers import WRAPPERS, on_host, read_mounts, read_wrapper

_SHELLS = ("bash", "sh", "dash", "zsh")
_RUNNERS = ("torchrun", "deepspeed", "srun", "mpirun", "mpiexec", "orterun", "sbatch")
_BARE = ("exec", "nohup", "time", "setsid", "command", "catchsegv", "builtin")
_PROJECT_TOOLS = ("poetry", "pdm", "pipenv", "pixi", "hatch", "rye")
_MOST_LAYERS = 20
_LONGEST_VALUE = 120_000
"""Bytes: Linux starts nothing with a word or a variable of 128 KiB (execve(2), MAX_ARG_STRLEN)."""
_MOST_VARIABLES = 1000
_DATE, _A_DATE = re.compile(r"(?:\$\(|`)\s*date\b"), "20260101"
"""In names of runs and files, where any date is right."""
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
    surrounding: Surrounding | None = None
    node_gpus: int = 0
    """That each node has, as the user says; 0: nobody has said."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Folders of this machine by where a container has them."""

    @property
    def gpus(self) -> int:
        """That the launcher of a node sees, as far as anybody has said; else 0."""
        visible = self.environment.get("CUDA_VISIBLE_DEVICES", "")
        if self.node_gpus or not re.fullmatch(r"\d+(,\d+)*", visible):
            return self.node_gpus or (self.tasks.gpus if self.tasks else None) or 0
        return visible.count(",") + 1

    def path_of(self, written: str) -> str:
        """Of a file that a command names, seen from where planner runs."""
        written = on_host(written, self.mounts)
        return f"{self.folder}/{written}" if self.folder and not written.startswith("/") else written

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


def unwrap(words: Sequence[str], text_of: TextOf, inherited: Mapping[str, str], node_gpus: int = 0) -> Unwrapped:
    """The words of the launcher itself. `inherited`: variables that a script finds when it is started; `node_gpus`:
    of each node, 0 where nobody has said.

    Raises SpecError for what only a shell or the job's machine decides, and for options that are not known.
    """
    layers = Unwrapped([UNKNOWN.sub("", word) for word in words], text_of, inherited, node_gpus=node_gpus)
    for _ in range(_MOST_LAYERS):
        if not _peel(layers):
            break
    else:
        raise refused("the command is wrapped too often", f"up to {_MOST_LAYERS} times")
    layers.words = [on_host(word, layers.mounts) for word in _without_addresses(layers.words)]
    if dates := {date for word in layers.words for date in UNKNOWN.findall(word) if _DATE.match(date)}:
        layers.words = [
            UNKNOWN.sub(lambda mark: _A_DATE if mark[1] in dates else mark[0], word) for word in layers.words
        ]
        layers.notes += tuple(f"{date} is assumed to be {_A_DATE} in the launch line" for date in sorted(dates))
    _refuse_unknown(layers.words)
    for name, value in layers.environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or not _can_be_started(value):
            raise refused(
                f"{name[:80]!a} is not the name of a variable, or its value is too long",
                f"NAME=value, of {_LONGEST_VALUE} characters",
            )
    if not all(map(_can_be_started, (*layers.words, layers.folder))) or len(layers.environment) > _MOST_VARIABLES:
        raise refused("the command cannot be started", f"{_MOST_VARIABLES} variables, and words as a system has them")
    for name, value in [*layers.environment.items()]:
        if name in ("MASTER_ADDR", "MASTER_PORT") and not re.fullmatch(r"[0-9.]+", value):
            layers.environment[name] = _ADDRESSES[name.lower()]  # names of nodes are none here
        elif UNKNOWN.search(value):
            del layers.environment[name]
            note = f"${name} comes from {unknown_source(value)}, which is not known here: the program runs without it"
            layers.notes += (note,)
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
        _script(layers, words[0], words[1:])
    elif name in _BARE:
        layers.words = words[1:]
    else:
        return False
    return True


def _env(layers: Unwrapped, words: list[str]) -> bool:
    rest = deque(words)
    while rest and rest[0].startswith("-"):
        option = rest.popleft()
        if option in ("-u", "--unset"):
            layers.environment.pop(rest.popleft() if rest else "", None)
        elif option not in ("-i", "-", "--ignore-environment") and not option.startswith("--unset="):
            raise refused(f"env has the option {option[:40]}", "env NAME=value ... COMMAND, with -i or -u")
    layers.words = list(rest)
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
    elif tool in _PROJECT_TOOLS:
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
    found = CommandContext({**layers.inherited, **layers.environment}, layers.text_of, layers.gpus)
    comes_to = FRAMEWORKS[PurePosixPath(layers.words[0]).name](words, found)
    layers.notes += (f"{' '.join(layers.words[:2])} starts {shorten(' '.join(take_variables(comes_to)[1]), 120)}",)
    layers.words = comes_to
    return True


def _starter(layers: Unwrapped, words: list[str]) -> bool:
    if layers.tasks is not None and layers.tasks.starter is not Starter.BATCH:
        raise refused(f"{layers.tasks.starter} starts another of its kind", "one of srun and mpirun")
    if PurePosixPath(layers.words[0]).name == "srun":
        layers.tasks, options, layers.words = schedulers.read_srun(words, layers.batch)
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
    options, rest = schedulers.read_sbatch(words)
    wrapped = options.get("wrap")
    if wrapped is None and not rest:
        raise refused("sbatch has no script", "sbatch SCRIPT")
    text = wrapped if wrapped is not None else layers.text_of(rest[0])
    place = "--wrap" if wrapped is not None else rest[0]
    layers.batch = {**schedulers.read_script_options(text, place), **options}
    layers.tasks = tasks = schedulers.count_tasks(layers.batch, Starter.BATCH)
    known = {**tasks.settings, **job_variables(tasks.job_nodes, tasks.job_tasks)}
    known |= {"SLURM_GPUS_ON_NODE": str(layers.node_gpus)} if layers.node_gpus and tasks.gpus is None else {}
    layers.inherited = {**layers.inherited, **known}
    _take_slurm(layers, layers.batch)
    _run_script(layers, text, place, rest[1:])
    return True


def _ray(layers: Unwrapped, words: list[str]) -> bool:
    if words[:2] != ["job", "submit"]:
        return False
    layers.words, variables, folder = schedulers.read_submit(words[2:], layers.text_of)
    layers.environment.update(variables)
    layers.enter(folder)
    return True


def _shell(layers: Unwrapped, words: list[str]) -> bool:
    rest = deque(words)
    while rest and re.fullmatch(r"-[a-zA-Z]+|--\w+|\+[a-z]", rest[0]):
        option = rest.popleft()
        if option.startswith("-") and not option.startswith("--") and option.endswith("c") and rest:
            text, *arguments = rest
            _run_script(layers, text, f"{PLACE} (-c)", arguments[1:])
            return True
        if option in ("-o", "-eo", "-euo", "-xeo", "-euxo") and rest:
            rest.popleft()
    if not rest:
        raise refused("the shell has no command", "bash SCRIPT, or bash -c 'COMMAND'")
    script, *arguments = rest
    _script(layers, script, arguments)
    return True


def _script(layers: Unwrapped, written: str, arguments: Sequence[str]) -> None:
    _refuse_unknown([written])
    _run_script(layers, layers.text_of(layers.path_of(written)), written, arguments)


def _run_script(layers: Unwrapped, text: str, place: str, arguments: Sequence[str]) -> None:
    here = layers.inherited.get("PWD")
    paths = {"0": place, "BASH_SOURCE": place} | ({"PWD": f"{here}/{layers.folder}".rstrip("/")} if here else {})
    shell = Shell(
        place, {**layers.inherited, **paths, **layers.environment}, dict(layers.environment), list(arguments),
        gpus=layers.gpus, text_of=lambda path: layers.text_of(layers.path_of(path)),
        exists=(lambda path: os.path.exists(layers.path_of(path))) if layers.text_of is local_text else None,
    )  # fmt: skip
    commands, ending = follow_script(text, shell)
    launches = [command for command in commands if _launches(command.words)]
    if not launches:
        said = f": it says {ending.said[:200]!a}" if ending is not None and ending.said else ""
        raise SpecError(
            f"the script ends in line {ending.line}, before it starts a program{said}"
            if ending is not None
            else "the script has no launch line",
            allowed="torchrun, accelerate launch, deepspeed, srun, mpirun, python with a program",
            remedy="give what the script asks for (its arguments; NAME=value before the command)"
            if ending is not None
            else "write the launch line that the script comes to",
            place=place,
        )
    chosen = _choose_launch(launches, place)
    for command in commands:
        if command is not chosen and command.words[0] not in _QUIET:
            layers.notes += (f"{place}: not run: {_show_command(command)}",)
    for command in commands[: commands.index(chosen)]:
        layers.surrounding = _activation(command) or layers.surrounding
    layers.environment.update(chosen.exported)
    layers.words = list(chosen.words)
    layers.enter(chosen.folder)


def _choose_launch(launches: Sequence[Statement], place: str) -> Statement:
    """The command that trains: one that starts ranks before others, and one that is run whatever happens before one
    that is run under a condition. Raises SpecError where several may be meant."""
    launches = [launch for launch in launches if _launches_ranks(launch.words)] or launches
    launches = [launch for launch in launches if not launch.perhaps] or launches
    launches = [launch for launch in launches if not _BESIDE_TRAINING.search(_program_name(launch.words))] or launches
    programs = {_program_name(launch.words) for launch in launches}
    perhaps = {launch.words for launch in launches if launch.perhaps}
    if len(programs) > 1 or len(perhaps) > 1:
        why = f", and {launches[-1].perhaps} decides which" if perhaps else ""
        raise SpecError(
            f"the script starts {len({launch.words for launch in launches})} programs{why}: "
            + "; ".join(dict.fromkeys(_show_command(launch) for launch in launches[-_MOST_NAMED:])),
            allowed="a script that starts one job",
            remedy="give the command of the one that is meant in the place of the script",
            place=place,
        )
    return launches[-1]


_MOST_NAMED = 4
_BESIDE_TRAINING = re.compile(
    r"(?:^|[^a-z])(?:eval|test|infer|predict|prepare|prep|preprocess|process|convert|merge|export|generate|sample|bench"
    r"|download|upload|tokenize|report|serve|server|check|plot|log|hub-sync|dataset|setup|tok_train|tok_eval)",
    re.IGNORECASE,
)  # fmt: skip
"""In names of programs that stand beside the one that trains."""


def _program_name(words: Sequence[str]) -> str:
    words = [part for word in words for part in word.split()]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-m", "--module") and following not in LAUNCHER_MODULES:
            return following
        if word.endswith((".py", ".sh")):
            return PurePosixPath(word).name
    return " ".join(words[:2])


def _show_command(command: Statement) -> str:
    words = " ".join(UNKNOWN.sub(lambda match: match[1], word) for word in command.words)
    return words if len(words) <= 80 else f"{words[:80]}..."


_QUIET = ("echo", "printf", "set", "date", "hostname", "nvidia-smi", "wait", "exit", "mkdir", "sleep", "trap", "pwd")
"""Commands that nobody has to be told were not run."""
_START_NOTHING = frozenset({
    *_QUIET, "which", "pip", "pip3", "type", "hash", "pkill", "killall", "kill", "tee", "cat", "grep", "module", "ml",
    "source", ".", "alias", "rm", "cp", "mv", "ls", "ps", "apt", "apt-get", "git", "tail", "sed", "ln", "chmod",
    "scancel", "squeue", "docker-compose", "unset", "df", "lscpu", "free", "du", "ulimit", "rsync", "tar", "wget",
    "curl",
})  # fmt: skip
"""Commands that start no program that trains, whatever their arguments are called."""


def _activation(statement: Statement) -> Surrounding | None:
    """The environment that a command of a script makes the one of those after it."""
    match statement.words:
        case ("source" | ".", path) if path.endswith("/bin/activate") and not UNKNOWN.search(path):
            return Surrounding("activate", {"prefix": path.removesuffix("/bin/activate")})
        case (("conda" | "mamba" | "micromamba"), "activate", name) if not UNKNOWN.search(name):
            return Surrounding("conda", {"name": name})
    return None


def _launches(words: Sequence[str]) -> bool:
    """Whether a command of a script starts a program, as far as its first words say."""
    words = [word for word in words if not re.match(r"[A-Za-z_]\w*=", word)]
    if not words or words[0] in _START_NOTHING:
        return False
    wraps = PurePosixPath(words[0]).name in (*_BARE, "env", *WRAPPERS)
    starts = range(len(words)) if wraps else (0,)
    return _launches_ranks(words) or any(_starts_program(words[start : start + 3]) for start in starts)


def _starts_program(words: Sequence[str]) -> bool:
    """Of a command's first three words."""
    name = PurePosixPath(words[0]).name
    if re.fullmatch(r"python[0-9.]*", name):
        beside = words[1:2] == ["-m"] and words[2:3] in (["pip"], ["venv"], ["ensurepip"])
        return words[1:2] not in (["-c"], ["-V"], ["--version"]) and not beside
    if _READERS.get(name) is _environment_tool:
        return words[1:2] == ["run"]
    return name.endswith((".py", ".sh")) or name in FRAMEWORKS or (name in _SHELLS and len(words) > 1)


def _launches_ranks(words: Sequence[str]) -> bool:
    names = [PurePosixPath(word).name for word in words]
    pairs = {*pairwise(names)}
    return bool({("job", "submit"), ("accelerate", "launch")} & pairs or {*_RUNNERS, *LAUNCHER_MODULES} & {*names}) or (
        names[0] in FRAMEWORKS
    )


def _can_be_started(text: str) -> bool:
    """Whether a system takes it as a word or a value (execve(2))."""
    try:
        return "\0" not in text and len(os.fsencode(text)) <= _LONGEST_VALUE
    except UnicodeEncodeError:
        return False


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
    "env": _env,
    **dict.fromkeys(("uv", "conda", "mamba", "micromamba", *_PROJECT_TOOLS), _environment_tool),
    **dict.fromkeys(WRAPPERS, _wrapper),
    **dict.fromkeys(FRAMEWORKS, _framework),
    **dict.fromkeys(("srun", "mpirun", "mpiexec", "orterun"), _starter),
    **dict.fromkeys(_SHELLS, _shell),
    "sbatch": _sbatch,
    "ray": _ray,
}
