"""Reads a launcher's options up to its command, and says what is wrong with a launch line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from planner.errors import SpecError
from planner.importers.launch_lines import unknown_option

PLACE = "the command behind --"
_MOST_RANKS = 1 << 20


def read_options(
    words: Sequence[str],
    with_value: Collection[str] | None,
    alone: Collection[str],
    program: str,
    *,
    short: Mapping[str, str] | None = None,
    values: Mapping[str, int] | None = None,
) -> tuple[dict[str, str | None], list[str]]:
    """Options up to the command, by their names with underscores, and what follows.

    `with_value` None: every option that is not alone has a value. `short`: names of one letter, whose value may follow
    without a space. `values`: options with several. Raises SpecError for an option that the program does not have.
    """
    found: dict[str, str | None] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        written, equals, value = word.lstrip("-").partition("=")
        name = written.replace("-", "_")
        if short is not None and not word.startswith("--"):
            name, written, equals, value = _short(word, short, alone, program)
        if name in alone:
            found[name] = value if equals else None
        elif with_value is not None and name not in with_value and not (values and name in values):
            raise unknown_option(written, program)
        elif equals:
            found[name] = value
        else:
            count = (values or {}).get(name, 1)
            if len(rest) < count:
                raise refused(f"--{written} has no value", f"--{written} VALUE")
            found[name] = " ".join(rest[:count])
            del rest[:count]
    return found, rest[1:] if rest[:1] == ["--"] else rest


def _short(word: str, short: Mapping[str, str], alone: Collection[str], program: str) -> tuple[str, str, str, str]:
    """`-N2`, `-N 2`, `-N=2`; of letters that stand alone several may follow each other."""
    letter, value = word[1], word[2:]
    if letter not in short:
        raise unknown_option(letter, program)
    name = short[letter]
    if name in alone:
        others = [each for each in value if short.get(each) not in alone]
        if others:
            raise unknown_option(word.lstrip("-"), program)
        return name, letter, "", ""
    return name, letter, "=" if value else "", value.removeprefix("=")


def count_of(name: str, written: str) -> int:
    """A whole number from 1 on. Raises SpecError for anything else."""
    if not re.fullmatch(r"[0-9]{1,7}", written) or not 0 < int(written) <= _MOST_RANKS:
        raise refused(f"{name} is {written[:40]!a}", f"a whole number from 1 to {_MOST_RANKS:,}")
    return int(written)


def refused(problem: str, allowed: str) -> SpecError:
    """The refusal of a launch line."""
    return SpecError(problem, allowed=allowed, remedy="write the command as it would run on the cluster", place=PLACE)
