"""Splits a Megatron-LM launch line or file of arguments into typed values, and lists those that nobody reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import SpecError
from planner.importers import foreign_keys, launch_lines
from planner.importers.foreign_keys import Key
from planner.importers.launch_lines import LaunchLine
from planner.importers.megatron_keys import KEYS, NOTED
from planner.importers.shell_words import words_of
from planner.job.nodes import node_from_data
from planner.job.text_files import file_text

PROGRAM = "Megatron-LM with megatron-core 0.20"
_LINE = "Megatron-LM's line"


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stands behind the script, judged by the table of keys."""

    source: str
    written: Mapping[str, Any]
    """By the name with underscores; only what matters."""
    ignored: Sequence[str]
    noted: Sequence[str]
    """Of kernels and buffers that a spec cannot say, as they are written."""
    unknown: Sequence[str]
    launch: LaunchLine | None
    """None where arguments stand alone."""

    def __getitem__(self, name: str) -> Any:
        """What is written, or Megatron-LM's default."""
        return self.written.get(name, KEYS[name].default)

    def place(self, name: str) -> str:
        return f"{self.source}: {option(name)}"

    def fault(self, name: str, problem: str, allowed: str, remedy: str = "") -> SpecError:
        """An argument that cannot be so."""
        return SpecError(
            f"{option(name)} {problem}",
            allowed=allowed,
            remedy=remedy or "write one of these",
            place=self.place(name),
        )


def option(name: str) -> str:
    """An argument as it is written."""
    return f"--{name.replace('_', '-')}"


def read(given: str, folder: Path) -> Arguments:
    """Of a line, or of the file of that name. Raises SpecError for what is refused, of a wrong type or abbreviated."""
    source, line = _LINE, given
    if "\n" not in given and " " not in given.strip() and os.path.isfile(folder / given):
        source, line = given, " ".join(file_text(folder / given, given).replace("\\\n", " ").split("\n"))
    words, launch = words_of(line, source), None
    if not words or not words[0].startswith("--"):
        launch = launch_lines.read(line)
        words = list(launch.script_arguments)
    return _judged(_pairs(words, source), source, launch)


def _pairs(words: Sequence[str], source: str) -> dict[str, tuple[str, ...]]:
    """Every argument with its values; the last one counts, as argparse has it."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            written, equals, value = word[2:].partition("=")
            name = written.replace("-", "_")
            found[name] = (value,) if equals else ()
        elif name:
            found[name] = (*found[name], word)
        else:
            raise SpecError(
                f"{word[:60]!a} stands before any argument",
                allowed="arguments that start with --",
                remedy="give the whole launch line, or the arguments alone",
                place=source,
            )
    return found


def _judged(pairs: Mapping[str, tuple[str, ...]], source: str, launch: LaunchLine | None) -> Arguments:
    written, ignored, noted, unknown = {}, [], [], []
    for name, values in pairs.items():
        if name in NOTED:
            noted.append(option(name))
        elif name in KEYS:
            place = f"{source}: {option(name)}"
            value = _converted(KEYS[name], name, values, place)
            if foreign_keys.check(
                {option(name): KEYS[name]}, option(name), node_from_data(value, place, name), PROGRAM
            ).matters:
                written[name] = value
            else:
                ignored.append(option(name))
        else:
            _refuse_abbreviation(name, source)
            unknown.append(option(name))
    return Arguments(source, written, ignored, noted, unknown, launch)


def _refuse_abbreviation(name: str, source: str) -> None:
    """argparse takes an abbreviation for the whole name, and which one it is hinges on the version."""
    whole = [option(each) for each, key in KEYS.items() if key.matters and each.startswith(name)]
    if whole:
        raise SpecError(
            f"{option(name)} is no whole argument",
            allowed=", ".join(whole),
            remedy="write its whole name",
            place=source,
        )


def _converted(key: Key, name: str, values: tuple[str, ...], place: str) -> Any:
    is_switch = key.kind == "flag" or key.only == (False,)
    if not key.matters:
        return " ".join(values)
    if is_switch != (not values):
        raise SpecError(
            f"{option(name)} has {'a value' if values else 'no value'}",
            allowed=option(name) if is_switch else f"{option(name)} VALUE",
            remedy="take it out" if is_switch else "write its value",
            place=place,
        )
    if is_switch:
        return True
    text = " ".join(values)
    if key.kind == "whole" and re.fullmatch(r"[0-9]{1,12}", text):
        return int(text)
    if key.kind == "number" and re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+\.?([eE][+-]?[0-9]{1,3})?", text):
        return float(text)
    return text
