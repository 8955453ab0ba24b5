"""Finds among the commands that a script has called the one that trains, and says what became of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

from planner.errors import SpecError, shorten
from planner.job.launching.frameworks import FRAMEWORKS
from planner.job.launching.launchers import LAUNCHER_MODULES, refused
from planner.job.launching.wrappers import WRAPPERS
from planner.runtime.scripts import UNKNOWN, Call, ScriptRun, mark

SHELLS = ("bash", "sh", "dash", "zsh")
RUNNERS = ("torchrun", "deepspeed", "srun", "mpirun", "mpiexec", "orterun", "sbatch")
BARE = ("exec", "nohup", "time", "setsid", "command", "catchsegv", "builtin")
PROJECT_TOOLS = ("poetry", "pdm", "pipenv", "pixi", "hatch", "rye")
ENVIRONMENT_TOOLS = ("uv", "conda", "mamba", "micromamba", *PROJECT_TOOLS)
_NODE_TOOLS = ("scontrol", "hostname", "getent", "nvidia-smi", "sleep")
"""Of which a script takes values that stand_in.sh gives."""
_START_NOTHING = frozenset({
    "cd", "wait", "which", "pip", "pip3", "pkill", "killall", "module", "ml", "source", "ps", "apt", "apt-get", "tail",
    "scancel", "squeue", "sinfo", "sacct", "docker-compose", "rsync", "scp", "ssh", "wget", "curl", "nc", "aws",
    "gsutil", "hf", "huggingface-cli", "wandb", "systemctl", "reboot", "shutdown", "fuser", "nvidia-smi",
})  # fmt: skip
"""Commands that start no program that trains, whatever their arguments are called."""
STAND_INS = tuple(sorted({
    *RUNNERS, *ENVIRONMENT_TOOLS, *_NODE_TOOLS, *WRAPPERS, *FRAMEWORKS, *SHELLS[1:], *BARE[1:4], "ray", "python",
    "python3", "accelerate", "torchx", "colossalai", "horovodrun", *_START_NOTHING,
} - {"cd", "source", "wait", "which", "tail", "ps", "time"}))  # fmt: skip
"""Commands that are not run."""
_BESIDE_TRAINING = re.compile(
    r"(?:^|[^a-z])(?:eval|test|infer|predict|prepare|prep|preprocess|process|convert|merge|export|generate|sample|bench"
    r"|download|upload|tokenize|report|serve|server|check|plot|log|hub-sync|dataset|setup|tok_train|tok_eval)",
    re.IGNORECASE,
)  # fmt: skip
"""In names of programs that stand beside the one that trains."""
_MOST_NAMED, _LONGEST_COMMAND, _MOST_UNSET = 4, 80, 50
_OF_THE_SHELL = re.compile(
    r"BASH\w*|RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|E?UID|PPID|PWD|OLDPWD|IFS|PATH|HOST\w*|OSTYPE|MACHTYPE|FUNCNAME"
    r"|PIPESTATUS|REPLY|OPT\w+|SHLVL|DIRSTACK|GROUPS|PS\d|SHELL\w*|LANG|TERM|_"
)
"""Variables that bash sets, or does without (bash(1))."""


@dataclass(frozen=True, slots=True)
class FoundLaunch:
    """The call that trains, its place among all of the script, sentences on the others, and which one of several runs
    it is."""

    call: Call
    at: int
    notes: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()


def find_launch_call(run: ScriptRun, place: str) -> FoundLaunch:
    """The call that trains: one that starts ranks before others. Raises SpecError where there is none, and where
    several may be meant."""
    values = {source for call in run.calls for word in call.words for source in UNKNOWN.findall(word)}
    launches = [
        call for call in run.calls if _launches(call.words) and f"output of {' '.join(call.words)}" not in values
    ]
    if not launches:
        for call in run.tried:
            if _launches(call.words) and any(map(UNKNOWN.search, call.words)):  # what is not set is a part of the line
                return FoundLaunch(call, len(run.calls))
        raise _no_launch(run, place)
    launches = [launch for launch in launches if _launches_ranks(launch.words)] or launches
    launches = [launch for launch in launches if not _BESIDE_TRAINING.search(_program_name(launch.words))] or launches
    if len({_program_name(launch.words) for launch in launches}) > 1:
        raise SpecError(
            f"the script starts {len({launch.words for launch in launches})} programs: "
            + "; ".join(dict.fromkeys(_show(launch.words) for launch in launches[-_MOST_NAMED:])),
            allowed="a script that starts one job",
            remedy="give the command of the one that is meant in the place of the script",
            place=place,
        )
    chosen = launches[-1]
    lines = dict.fromkeys(launch.words for launch in launches)
    notes = []
    for call in run.calls:
        if call.words[0] == "cd":
            notes.append(
                f"{place}: {_show(call.words)}: there is no such folder here, and the script stays where it is"
            )
        elif call.words not in lines and call.words[0] not in _NODE_TOOLS:
            notes.append(f"{place}: not run: {_show(call.words)}")
    at = max(at for at, call in enumerate(run.calls) if call is chosen)
    planned = (_which_of(list(lines), place),) if len(lines) > 1 else ()
    return FoundLaunch(chosen, at, tuple(dict.fromkeys(notes)), planned)


def _no_launch(run: ScriptRun, place: str) -> SpecError:
    said = f": it says {run.said!a}" if run.said else ""
    return SpecError(
        f"the script ends{f' in line {run.line}' if run.line else ''}, before it starts a program{said}"
        if run.exit_code
        else f"the script has no launch line{said}",
        allowed="torchrun, accelerate launch, deepspeed, srun, mpirun, python with a program",
        remedy="give what the script asks for (its arguments; NAME=value before the command)"
        if run.exit_code
        else "write the launch line that the script comes to",
        place=place,
    )


def _which_of(lines: Sequence[Sequence[str]], place: str) -> str:
    """Of several lines of one program, the last is planned: which one that is, by the arguments that differ."""
    arguments = [_arguments(line) for line in lines]
    alike = set(arguments[0]).intersection(*arguments)
    differing = [" ".join(each for each in line if each not in alike) for line in arguments]
    *others, planned = [
        f"`{shorten(each, _LONGEST_COMMAND)}`" if each else "the line without them" for each in differing
    ]
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    shown = "; ".join(others[:_MOST_NAMED])
    return f"{place} starts {_program_name(lines[-1])} {len(lines)} times: planned is {planned}, not {shown}{more}"


def _arguments(words: Sequence[str]) -> list[str]:
    """Options with their values, and other words."""
    arguments: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        takes_value = before.startswith("-") and "=" not in before
        if takes_value and not word.startswith("-"):
            arguments[-1] += f" {word}"
        else:
            arguments.append(word)
    return arguments


def unset_variables(text: str, variables: Mapping[str, str]) -> list[str]:
    """Variables that a script takes as they are, and that neither it nor anybody else sets."""
    found = dict.fromkeys(re.findall(r"\$\{?([A-Za-z_]\w*)", text))
    names = [name for name in found if name not in variables and not _OF_THE_SHELL.fullmatch(name)]
    return [name for name in names[:_MOST_UNSET] if not _is_seen_to(name, text)]


def _is_seen_to(name: str, text: str) -> bool:
    """Whether the script sets it, has another value for it, or asks whether it is set."""
    return bool(
        re.search(rf"(?<![\w$-])(?<!\$\{{){name}\b", text)
        or re.search(rf"\$\{{{name}:?[-=+?]", text)
        or re.search(rf"-[znv]\s+\"?\$\{{?{name}\b", text)
    )


def set_beside(call: Call, again: Call, of_tasks: Mapping[str, str]) -> Call:
    """The call with marks for what is not known of it: `again` is the same one where variables that nobody has set are
    marks, and where `of_tasks` have the values of another task. Raises SpecError where tasks start different lines."""
    cause = mark(" and ".join(f"${name}" for name in of_tasks))
    without = [UNKNOWN.sub("", word) for word in again.words]
    if [word for word in without if word] == [word for word in call.words if word]:
        call = replace(call, words=again.words)  # where a variable is not set, a word may be missing
    if len(call.words) != len(again.words) or _program_name(call.words) != _program_name(again.words):
        if of_tasks:
            raise refused(f"{UNKNOWN.findall(cause)[0]} decides what a task starts", "the same command on each task")
        return call

    def joined(value: str, other: str | None) -> str:
        if other is None or value == other:
            return value
        if UNKNOWN.search(other):
            return other if UNKNOWN.sub("", other) == UNKNOWN.sub("", value) else value
        return cause if of_tasks else value

    words = tuple(joined(value, other) for value, other in zip(call.words, again.words, strict=True))
    changed = {name: joined(value, again.environment.get(name)) for name, value in call.environment.items()}
    return replace(call, words=words, environment=changed)


def _program_name(words: Sequence[str]) -> str:
    words = [part for word in words for part in word.split()]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("-m", "--module") and following not in LAUNCHER_MODULES:
            return following
        if word.endswith((".py", ".sh")):
            return PurePosixPath(word).name
    return " ".join(words[:2])


def _show(words: Sequence[str]) -> str:
    shown = " ".join(UNKNOWN.sub(lambda found: found[1], word) for word in words)
    return shown if len(shown) <= _LONGEST_COMMAND else f"{shown[:_LONGEST_COMMAND]}..."


def _launches(words: Sequence[str]) -> bool:
    """Whether a command of a script starts a program, as far as its first words say."""
    words = [word for word in words if not re.match(r"[A-Za-z_]\w*=", word)]
    if not words or words[0] in _START_NOTHING:
        return False
    wraps = PurePosixPath(words[0]).name in (*BARE, *WRAPPERS)
    starts = range(len(words)) if wraps else (0,)
    return _launches_ranks(words) or any(_starts_program(words[start : start + 3]) for start in starts)


def _starts_program(words: Sequence[str]) -> bool:
    """Of a command's first three words."""
    name = PurePosixPath(words[0]).name
    if re.fullmatch(r"python[0-9.]*", name):
        return words[1:2] != ["-c"] and not (words[1:2] == ["-m"] and words[2:3] in (["pip"], ["venv"], ["ensurepip"]))
    if name in ENVIRONMENT_TOOLS:
        return words[1:2] == ["run"]
    return name.endswith((".py", ".sh")) or name in FRAMEWORKS or (name in SHELLS and len(words) > 1)


def _launches_ranks(words: Sequence[str]) -> bool:
    names = [PurePosixPath(word).name for word in words]
    pairs = {*pairwise(names)}
    return bool({("job", "submit"), ("accelerate", "launch")} & pairs or {*RUNNERS, *LAUNCHER_MODULES} & {*names}) or (
        names[0] in FRAMEWORKS
    )
