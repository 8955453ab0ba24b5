"""Plain values as dataclasses, each of exactly the type that its hint says."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from planner.errors import MeasureError

_MOST = 2**63 - 1
"""Bytes, microseconds, counts: what a column of whole numbers holds."""


def read_as(kind: Any, value: Any, place: str) -> Any:
    """The value as a dataclass (from an object), a tuple (from a list), a member of an enumeration, a mapping by
    text, a whole number, a finite number, a text or a truth. Raises MeasureError at `place`."""
    if kind is Any:
        return value
    if isinstance(kind, types.UnionType):
        member = next(each for each in typing.get_args(kind) if each is not types.NoneType)
        return None if value is None else read_as(member, value, place)
    if typing.get_origin(kind) is tuple:
        return _tuple(typing.get_args(kind), value, place)
    if typing.get_origin(kind) is Mapping:
        return _mapping(typing.get_args(kind)[1], value, place)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, place)
    if issubclass(kind, StrEnum):
        if value not in list(kind):
            raise _wrong(value, ", ".join(kind), place)
        return kind(value)
    if kind is float and type(value) in (int, float) and abs(value) <= _MOST:  # neither infinite nor NaN
        return float(value)
    if kind is int and type(value) is int and abs(value) <= _MOST:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    raise _wrong(value, _NAMES[kind], place)


_NAMES = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def _tuple(members: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list", place)
    if members[-1] is Ellipsis:
        return tuple(read_as(members[0], each, f"{place}[{index}]") for index, each in enumerate(value))
    if len(value) != len(members):
        raise _wrong(value, f"a list of {len(members)}", place)
    pairs = zip(members, value, strict=True)
    return tuple(read_as(member, each, f"{place}[{index}]") for index, (member, each) in enumerate(pairs))


def _mapping(member: Any, value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", place)
    return {str(key): read_as(member, each, f"{place}.{str(key)[:40]}") for key, each in value.items()}


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object", place)
    hints, fields = _hints(kind), {each.name: each for each in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise MeasureError(f"there is no key {str(key)[:80]!a}", allowed=", ".join(fields), place=place)
    for name, each in fields.items():
        needed = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if needed and name not in value:
            raise MeasureError(f"{name} is missing", remedy="measure again", place=place)
    return kind(**{name: read_as(hints[name], value[name], f"{place}.{name}") for name in fields if name in value})


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _wrong(value: Any, allowed: str, place: str) -> MeasureError:
    shown = f"a {type(value).__name__}" if isinstance(value, Mapping | list | tuple) else _format_value(value)
    return MeasureError(f"{place} is {shown}", allowed=allowed, remedy="measure again", place=place)


def _format_value(value: Any) -> str:
    if isinstance(value, int) and abs(value) > _MOST:
        return "too large"
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    return ascii(value[:80] if isinstance(value, str) else value)
