"""Writes and reads what the process of a rank brings back: the report of its run beside its trace, or its crash.

A program can write to that channel itself, so a reader takes nothing but what has the types of the records here, within
limits. Figures follow from the trace's events alone, whose own check is planner.running.attested.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from planner.errors import PlannerError, ProgramError
from planner.job.json_text import is_plain_text, read_json
from planner.running.order import RankRun
from planner.tracing import trace_text
from planner.units import MIB

ABOUT, TRACE, CRASH = "about", "trace", "crash"
"""Parts of the answer: the run without its trace, its trace, and an error of the program's own."""
_MOST_BYTES = 4 * MIB
"""Of a report; those of the largest programs have some hundred KiB."""
_MOST_TEXT = 64 * 1024
_MOST_LISTED = 10_000
_MOST_NUMBER = 2**62
_PLACE = "the program's answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """An error that the program raised."""

    said: str
    """Its class and the beginning of its message."""
    text: str
    """Its traceback."""
    place: str = ""
    sought: tuple[str, ...] = ()
    """Packages that it looked for in vain."""
    no_room: bool = False
    """Whether what it wrote found no room."""


def forged_error(problem: str) -> ProgramError:
    """The refusal of an answer that planner's own side of the process cannot have written."""
    return ProgramError(
        f"the program wrote to planner's channel, or changed what planner watches it with: {problem}",
        allowed="a program that leaves planner's own modules, memory and descriptors alone",
        remedy="run it without what reaches into planner",
        place=_PLACE,
    )


def about_text(run: RankRun) -> bytes:
    """The report of a run: all but its trace."""
    found = {name: _plain(getattr(run, name)) for name in RankRun.__dataclass_fields__ if name != "trace"}
    return json.dumps(found).encode()


def crash_text(crash: Crash) -> bytes:
    """The part that says how a program crashed."""
    return json.dumps(asdict(crash)).encode()


def read_run(parts: Mapping[str, bytes], rank: int) -> RankRun:
    """The run of this rank. Raises ProgramError for parts that are no report and trace of it."""
    try:
        document = _document(parts[ABOUT])
        found = _read(RankRun, {**document, "trace": trace_text.loads(parts[TRACE].decode())}, "")
    except (ValueError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise forged_error(str(error)[:300]) from None
    if found.rank != rank or not 0 < found.memory_fraction <= 1:
        raise forged_error("it is the report of another rank, or of a GPU that there is not")
    return found  # type: ignore[no-any-return]


def read_crash(content: bytes) -> Crash:
    """How the program crashed. Raises ProgramError for what is no report of that."""
    try:
        return _read(Crash, _document(content), "")  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        raise forged_error(str(error)[:300]) from None


def _document(content: bytes) -> Any:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a report of {len(content)} bytes")
    try:
        return read_json(content.decode(), _PLACE, constants=False)
    except PlannerError as error:
        raise ValueError(error.problem) from None


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _read(kind: Any, value: Any, name: str) -> Any:
    """The value as this type, by its annotation. Raises ValueError for any other."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _record(kind, value, name)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > _MOST_LISTED:
            raise ValueError(f"{name} is no list of up to {_MOST_LISTED}")
        return tuple(_read(inner[0], each, name) for each in value)
    if origin is not None:  # a mapping
        if not isinstance(value, dict) or len(value) > _MOST_LISTED:
            raise ValueError(f"{name} is no object")
        return {_read(str, key, name): _read(inner[1], each, name) for key, each in value.items()}
    if kind is Any:
        return value
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(_read(str, value, name))
    return _scalar(kind, value, name)


def _record(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, kind):
        return value
    fields = _fields_of(kind)
    if not isinstance(value, dict) or not value.keys() <= fields.keys():
        raise ValueError(f"{name or 'the report'} is no {kind.__name__}")
    try:
        return kind(**{key: _read(fields[key], each, key) for key, each in value.items()})
    except TypeError:
        raise ValueError(f"{name or 'the report'} is no whole {kind.__name__}") from None


@cache
def _fields_of(kind: Any) -> Mapping[str, Any]:
    return types.MappingProxyType(typing.get_type_hints(kind))


def _scalar(kind: type, value: Any, name: str) -> Any:
    least = -_MOST_NUMBER if name == "values" else 0  # what ranks tell each other may be negative
    if kind is float and type(value) in (int, float) and math.isfinite(value) and 0 <= value <= _MOST_NUMBER:
        return float(value)
    if kind is int and type(value) is int and least <= value <= _MOST_NUMBER:
        return value
    if kind is bool and type(value) is bool:
        return value
    if kind is str and type(value) is str and len(value) <= _MOST_TEXT and is_plain_text(value):
        return value
    raise ValueError(f"{name} is no {kind.__name__} within its limits")
