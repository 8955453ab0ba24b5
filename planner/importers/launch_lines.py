"""Parses a launch line: the launcher, its options, the environment, and the script with its arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import PurePosixPath

from planner.errors import SpecError
from planner.importers.launch_options import LAUNCHER_OPTIONS, PLACE, read_options
from planner.importers.shell_words import words_of

_LAUNCHERS = (
    "torchrun, python -m torch.distributed.run, accelerate launch, deepspeed, python SCRIPT; with srun and its options"
    " before"
)

_CONFS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MATTER = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_MODULE_LOADING",
)
_PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """What stands in the line, not judged yet."""

    launcher: str
    """torchrun | accelerate | deepspeed | python"""
    options: Mapping[str, str | None]
    """Of the launcher, by their names with underscores; None for those without a value."""
    script_arguments: Sequence[str]
    allocator_conf: str
    not_read: Sequence[str]
    """Variables, and options of srun."""


def read(line: str) -> LaunchLine:
    """The parts of a line. Raises SpecError for what only a shell resolves, and for launchers that are not known."""
    behind_variables, environment = _environment(words_of(line, PLACE))
    command, before = _behind_srun(behind_variables)
    launcher, rest = _launcher(command, srun=bool(before))
    options, script = _options(launcher, rest)
    conf, variables = _judge_environment(environment)
    return LaunchLine(launcher, options, script, conf, [*variables, *before])


def _environment(words: Sequence[str]) -> tuple[Sequence[str], dict[str, str]]:
    found: dict[str, str] = {}
    rest = words[1:] if words and words[0] == "env" else words
    while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
        found[match[1]] = match[2]
        rest = rest[1:]
    return rest, found


def _judge_environment(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """PYTORCH_ALLOC_CONF's value, and the names of variables that do not matter."""
    for name in environment:
        if name in _MATTER or name.startswith(_PREFIXES):
            raise SpecError(
                f"the variable {name} matters to memory, and is not understood here",
                allowed=", ".join(_CONFS) + ", and variables that do not matter",
                remedy="write it in accelerate's config (--from-accelerate)"
                if name.startswith(_PREFIXES)
                else "take it out to plan the job without it",
                place=PLACE,
            )
    confs = [environment[name] for name in _CONFS if name in environment]
    if len(set(confs)) > 1:
        raise SpecError(
            f"{_CONFS[0]} is {confs[0]!a}, and {_CONFS[1]} is {confs[1]!a}",
            allowed="one value, wherever it is said",
            remedy="delete one of them",
            place=PLACE,
        )
    return (confs[0] if confs else ""), [name for name in environment if name not in _CONFS]


def _behind_srun(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    if not words or PurePosixPath(words[0]).name != "srun":
        return words, []
    for index, word in enumerate(words):
        if _is_launcher(word):
            return words[index:], ["srun", *(each for each in words[1:index] if each.startswith("-"))]
    raise _no_launcher(words)


def _is_launcher(word: str) -> bool:
    name = PurePosixPath(word).name
    return name in ("torchrun", "accelerate", "deepspeed") or re.fullmatch(r"python[0-9.]*", name) is not None


def _launcher(words: Sequence[str], *, srun: bool) -> tuple[str, Sequence[str]]:
    if not words or not _is_launcher(words[0]):
        raise _no_launcher(words)
    name = PurePosixPath(words[0]).name
    if name in ("torchrun", "deepspeed"):
        return name, words[1:]
    if name == "accelerate":
        if words[1:2] != ["launch"]:
            raise _no_launcher(words)
        return "accelerate", words[2:]
    rest = words[1:]
    while rest and rest[0] in ("-u", "-O", "-B"):
        rest = rest[1:]
    if rest[:2] in (["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]):
        return "torchrun", rest[2:]
    if rest[:2] == ["-m", "accelerate.commands.launch"]:
        return "accelerate", rest[2:]
    if srun:
        raise SpecError(
            "srun starts python itself, and how many processes it starts stands elsewhere",
            allowed=_LAUNCHERS,
            remedy="launch by torchrun, or write cluster and parallel in JOB.yaml instead of the launch line",
            place=PLACE,
        )
    return "python", rest


def _options(launcher: str, words: Sequence[str]) -> tuple[dict[str, str | None], Sequence[str]]:
    """Options up to the script, and what stands behind the script."""
    options: dict[str, str | None] = {}
    rest = [*dropwhile(lambda word: word.startswith("-"), words)]
    if launcher in LAUNCHER_OPTIONS:
        options, rest = read_options(words, *LAUNCHER_OPTIONS[launcher])
    if not rest:
        raise SpecError(
            "the line has no script",
            allowed=f"{launcher} ... train.py ...",
            remedy="give the whole line, with the script and its arguments",
            place=PLACE,
        )
    return options, rest[1:]


def _no_launcher(words: Sequence[str]) -> SpecError:
    first = words[0][:100] if words else "nothing"
    return SpecError(
        f"the line starts {first!a}, which is no launcher that is understood",
        allowed=_LAUNCHERS,
        remedy="give the line that starts the processes, or write cluster in JOB.yaml instead",
        place=PLACE,
    )
