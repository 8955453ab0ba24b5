"""Declares what becomes of a key of another tool's file: a key of the spec, nothing, or a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.job.nearest import did_you_mean
from planner.job.nodes import Node

_IN_WORDS = {
    "flag": "true or false",
    "whole": "a whole number",
    "number": "a number",
    "text": "a text",
    "mapping": "a mapping",
    "any": "",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "flag": (bool,),
    "whole": (int,),
    "number": (int, float),
    "text": (str,),
    "mapping": (dict,),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a foreign file."""

    to: str = ""
    """The keys of the spec that it decides; empty: it decides none."""
    kind: str = "any"
    """flag | whole | number | text | mapping | any"""
    default: Any = None
    """What its own program takes where nothing is written."""
    only: tuple[Any, ...] = ()
    """It matters, and is understood with these values alone."""
    why: str = ""
    """Why it is refused with others, or what else is to be known."""

    @property
    def matters(self) -> bool:
        return bool(self.to or self.only)


def mapped_key(to: str, kind: str, default: Any = None, why: str = "") -> Key:
    """A key that the spec has too."""
    return Key(to, kind, default, (), why)


def fixed_key(values: tuple[Any, ...], why: str) -> Key:
    """A key that matters, and of which other values are refused; the first value is the default."""
    return Key("", "any", values[0], values, why)


def ignored_keys(*names: str) -> dict[str, Key]:
    """Keys that change no tensor on the device while it trains."""
    return {name: Key() for name in names}


def check(known: Mapping[str, Key], name: str, node: Node, program: str) -> Key:
    """The fate of a key that a file has. Raises SpecError if it is unknown or of another type, or not understood."""
    key = known.get(name)
    if key is None:
        raise SpecError(
            f"unknown key `{name}`",
            allowed=f"the keys of {program}",
            remedy=did_you_mean(name, known) or "delete it, or say what it decides in JOB.yaml",
            place=node.key_place or node.place,
        )
    if key.only and not any(_same(node, value) for value in key.only):
        raise SpecError(
            f"{name} is {node.summary}: {key.why}",
            allowed=", ".join(_format_value(value) for value in key.only),
            remedy="take it out to plan the job without it",
            place=node.place,
        )
    if node.value is not None and key.kind != "any" and type(node.value) not in _TYPES[key.kind]:
        raise _wrong_type(name, node, key)
    if node.value is None and key.to and key.default is not None:
        raise _wrong_type(name, node, key)
    return key


def _wrong_type(name: str, node: Node, key: Key) -> SpecError:
    return SpecError(
        f"{name} is {node.summary}",
        allowed=_IN_WORDS[key.kind] or "a value",
        remedy=_unquote(node) or "delete it for the default",
        place=node.place,
    )


def _unquote(node: Node) -> str:
    return "write it without quotes" if isinstance(node.value, str) else ""


def _same(node: Node, value: Any) -> bool:
    if node.value in ({}, []):
        return value == node.plain() or value is None
    return type(node.value) is type(value) and node.plain() == value


def _format_value(value: Any) -> str:
    if value is None or value == "":
        return "null" if value is None else '""'
    return str(value).lower() if isinstance(value, bool) else str(value)


def list_ignored(known: Mapping[str, Key], names: Iterable[str]) -> list[str]:
    """Those of the names that do not matter to memory, in their order."""
    return [name for name in names if not known[name].matters]
