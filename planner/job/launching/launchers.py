"""Launchers of ranks: their options, and the words of a command that starts one, read without a shell."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from planner.errors import SpecError
from planner.job.json_text import packaged_json
from planner.job.size_limits import MOST_RANKS
from planner.runtime.launcher_parsers import PLACE as PLACE

OLD_LAUNCHER = "torch.distributed.launch"
HOSTS = frozenset({"H", "hostfile", "i", "include", "e", "exclude"})
"""Options of deepspeed that name hosts."""


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options of a program, by their names with underscores."""

    alone: Collection[str]
    """Those without a value."""
    program: str = ""
    """How messages call it; a launcher is called by its package."""
    source: str = ""
    package: str = ""
    version: str = ""
    """Of its package."""
    with_value: Collection[str] | None = None
    """None: every other one."""
    short: Mapping[str, str] | None = None
    """Names by their letter, whose value may follow without a space."""
    several: Mapping[str, int] = field(default_factory=dict)
    """Those with more than one value."""


def _read_tables(file: str) -> Iterator[tuple[str, OptionTable]]:
    for name, table in packaged_json(f"launching/{file}.json").items():
        lists = {kind: frozenset(" ".join(value).split()) for kind, value in table.items() if isinstance(value, list)}
        yield name, OptionTable(**{**table, **lists})


TABLES = {**dict(_read_tables("parsers")), **dict(_read_tables("launchers"))}
"""Of launchers by their modules, as tests/job/launching/test_parsers.py writes them; of other programs by their names.
"""
LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    OLD_LAUNCHER: "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""What `python -m` starts as a launcher's command does."""


def read_options(
    words: Sequence[str],
    table: OptionTable,
    *,
    gathered: dict[str, list[str]] | None = None,
    passed_over: list[str] | None = None,
) -> tuple[dict[str, str | None], list[str]]:
    """Options up to the command, by their names with underscores, and what follows.

    `gathered` gets all values of options that may come often, `passed_over` those that are not known and stand with
    their value in one word, as a plug-in's may. Raises SpecError for an option that the program does not have.
    """
    options: dict[str, str | None] = {}
    rest, short, alone, with_value = deque(words), table.short, table.alone, table.with_value
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.popleft()
        written, equals, value = word.lstrip("-").partition("=")
        name = written.replace("-", "_")
        if short is not None and not word.startswith("--"):
            # `-N2`, `-N 2`, `-N=2`; of letters that stand alone several may follow each other.
            written, value = word[1], word[2:]
            if written not in short:
                raise unknown_option(written, table)
            name = short[written]
            if name in alone and any(short.get(letter) not in alone for letter in value):
                raise unknown_option(word.lstrip("-"), table)
            equals = "=" if value and name not in alone else ""
            value = value.removeprefix("=")
        elif short is not None and with_value is not None and name not in alone and name not in with_value:
            # getopt_long(3): a beginning that only one option has
            begin = [each for each in {*with_value, *alone} if each.startswith(name)]
            name = begin[0] if len(begin) == 1 else name
        if name in alone:
            options[name] = value if equals else None
        elif with_value is not None and name not in with_value and name not in table.several:
            if passed_over is None or not equals or any(each.startswith(name) for each in {*with_value, *alone}):
                raise unknown_option(written, table)
            passed_over.append(word)
        elif equals:
            options[name] = value
        else:
            count = table.several.get(name, 1)
            if len(rest) < count:
                raise refused(f"--{written} has no value", f"--{written} VALUE", "write its value")
            options[name] = value = " ".join(rest.popleft() for _ in range(count))
        if gathered is not None and options[name] is not None:
            gathered.setdefault(name, []).append(value)
    if rest and rest[0] == "--":
        rest.popleft()
    return options, list(rest)


_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def take_variables(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The variables that stand before a command (`NAME=value ... COMMAND`), and the words of the command."""
    variables: dict[str, str] = {}
    for number, word in enumerate(words):
        if (match := _VARIABLE.fullmatch(word)) is None:
            return variables, list(words[number:])
        variables[match[1]] = match[2]
    return variables, []


def refused(
    problem: str, allowed: str, remedy: str = "write the command as it would run on the cluster", *, place: str = PLACE
) -> SpecError:
    """The refusal of a launch line."""
    return SpecError(problem, allowed=allowed, remedy=remedy, place=place)


def unknown_option(name: str, table: OptionTable) -> SpecError:
    """An option that nobody knows."""
    program = table.program or f"the launcher of {table.package} {table.version}"
    return refused(f"unknown option --{name}", f"the options of {program}", "see how it is spelt there, or delete it")


def count_of(name: str, written: str) -> int:
    """A whole number from 1 on. Raises SpecError for anything else."""
    if not re.fullmatch(r"[0-9]{1,7}", written) or not 0 < int(written) <= MOST_RANKS:
        raise refused(f"{name} is {written[:40]!a}", f"a whole number from 1 to {MOST_RANKS:,}")
    return int(written)


def torchrun_size(
    options: Mapping[str, str | None], environment: Mapping[str, str] = MappingProxyType({}), node_gpus: int = 0
) -> tuple[int, int]:
    """Nodes and processes of each; of an option that is not written torchrun asks its `environment` (torch 2.13,
    torch/distributed/argparse_util.py). `node_gpus`: of each node, 0 where nobody says. Raises SpecError for counts
    that are found while it runs."""
    nodes = options.get("nnodes") or environment.get("PET_NNODES") or "1"
    processes = options.get("nproc_per_node") or environment.get("PET_NPROC_PER_NODE") or "1"
    if processes in ("gpu", "auto") and node_gpus:
        processes = str(node_gpus)
    least, _, most = nodes.partition(":")
    if most and most != least:
        raise refused(
            f"--nnodes is {nodes}: the number of nodes changes while the job runs",
            "a number, or the same number twice (2:2)",
            "plan the job for the fewest nodes, where each rank holds most",
        )
    if processes in ("gpu", "auto", "cpu", "xpu"):
        raise refused(
            f"--nproc-per-node is {processes}, which the machine decides", "a number", "write how many GPUs a node has"
        )
    return count_of("--nnodes", least), count_of("--nproc-per-node", processes)


def deepspeed_size(options: Mapping[str, str | None]) -> tuple[int | None, int | None]:
    """Nodes and GPUs of each, as DeepSpeed's launcher is told them; None where it asks a file of hosts or the machine.

    Raises SpecError for no counts, and for a line that starts several jobs.
    """
    if options.get("autotuning"):
        raise refused(
            "the line asks for autotuning, and so for several jobs",
            "a line that starts one job",
            "take --autotuning out",
        )
    hosts = options.keys() & HOSTS
    included = (options.get("i") or options.get("include") or "").split("@")
    slots = {len(slots.split(",")) if slots else 0 for _, _, slots in (host.partition(":") for host in included)}
    if len(slots) == 1 and 0 not in slots:
        return len(included), slots.pop()
    gpus = options.get("num_gpus") or options.get("num_accelerators")
    nodes = options.get("num_nodes") or (None if hosts or gpus is None else "1")
    return (
        None if nodes is None else count_of("--num_nodes", nodes),
        None if gpus is None else count_of("--num_gpus", gpus),
    )


_MOST_CHARACTERS = 100_000
_NEEDS_SHELL = re.compile(r"[$`;|&<>()*?\[\]{}~#!\n]")
"""Outside of single quotes."""


def words_of(line: str, place: str) -> list[str]:
    """The words of a command; of a line that is more than words, those of bash that runs it. Raises SpecError."""
    if len(line) > _MOST_CHARACTERS:
        raise SpecError(
            f"the line has {len(line)} characters",
            allowed=f"up to {_MOST_CHARACTERS}",
            remedy="give the command that launches the job",
            place=place,
        )
    line = line.replace("\r\n", "\n").replace("\\\n", " ").strip()
    if _NEEDS_SHELL.search(re.sub("'[^']*'", "", line)):
        return ["bash", "-c", line]
    try:
        return shlex.split(line)
    except ValueError as error:
        raise SpecError(
            f"the line cannot be read: {error}", allowed="one command", remedy="close what is open", place=place
        ) from None
