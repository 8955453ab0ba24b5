"""One codec between dataclasses and plain JSON values: by the order of the fields, and back by their type hints.

A field of a public document that is not simply its value under its name says so in its metadata, by :func:`shape`.
Standard library only: it runs in the environments of other people's jobs.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from planner.errors import PlannerError

_Record = TypeVar("_Record")
_MOST = 2**63 - 1
"""Of whole numbers and of floats; neither an infinite number nor NaN is at most this."""
_SCALARS = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def shape(
    *,
    key: str = "",
    omit_default: bool = False,
    flatten: bool = False,
    skip: bool = False,
    then: str = "",
    write: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Mapping[str, Any]:
    """The metadata of a field whose document differs from the record.

    `key` is its name there; `omit_default` leaves it out where it has its default; `flatten` puts the keys of a nested
    record beside its neighbours; `skip` keeps it out of the document; `then` names a property that is written after it,
    and not read; `write` makes plain values of it, `read` the value of those (raising ValueError for others).
    """
    given = {
        "key": key, "omit_default": omit_default, "flatten": flatten, "skip": skip, "then": then, "write": write,
        "read": read,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value}


def every(kind: Iterable[Enum]) -> Callable[[Mapping[Any, int]], dict[str, int]]:
    """Writes a mapping by members of an enumeration with all of them, 0 where there is none."""
    return lambda sizes: {member.value: sizes.get(member, 0) for member in kind}


def to_plain(record: Any) -> dict[str, Any]:
    """The fields of a record as plain values, in their order: enums as values, tuples as lists, records as objects."""
    document: dict[str, Any] = {}
    for field in _fields(typing.cast(Any, type(record))):
        value, how = getattr(record, field.name), field.metadata
        if how.get("flatten"):
            document |= to_plain(value)
        elif not (how.get("omit_default") and value == field.default):
            document[field.key] = _plain(how["write"](value) if "write" in how else value)
        if then := how.get("then"):
            document[then] = _plain(getattr(record, then))
    return document


def _plain(value: Any) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return to_plain(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(member) for key, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(member) for member in value]
    return value


def from_plain(
    kind: type[_Record],
    document: Any,
    place: str = "",
    *,
    error: type[PlannerError] = PlannerError,
    remedy: str = "",
    strict: bool = True,
) -> _Record:
    """The record that :func:`to_plain` wrote. Keys of fields with a default may be missing; unknown keys are rejected,
    or ignored where it is not `strict`.

    Raises `error` with the path of the fault below `place`.
    """
    try:
        return typing.cast(_Record, _read(kind, document, strict))
    except _FaultError as fault:
        path = (place + fault.path).lstrip(".")
        raise error(fault.problem, allowed=fault.allowed, remedy=remedy, place=path) from None


def from_document(
    kind: type[_Record],
    document: Mapping[str, Any],
    schema: str,
    noun: str,
    *,
    error: type[PlannerError] = PlannerError,
    remedy: str = "",
    strict: bool = True,
) -> _Record:
    """The record of a document with this `schema`; raises `error` if the document is no such `noun`."""
    if document.get("schema") != schema:
        found = document.get("schema")
        raise error(f"a document of schema {found!r} is not a {noun}", allowed=schema, place="schema")
    fields = {key: value for key, value in document.items() if key != "schema"}
    return from_plain(kind, fields, noun, error=error, remedy=remedy, strict=strict)


class _FaultError(Exception):
    """What is wrong, and where: the path grows while the error rises."""

    def __init__(self, problem: str, allowed: str = "") -> None:
        super().__init__(problem)
        self.problem, self.allowed, self.path = problem, allowed, ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    key: str
    hint: Any
    default: Any
    metadata: Mapping[str, Any]


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        _Field(
            field.name,
            field.metadata.get("key", field.name),
            hints[field.name],
            field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            field.metadata,
        )
        for field in dataclasses.fields(kind)
        if not field.metadata.get("skip")
    )


@functools.cache
def _keys(kind: Any) -> frozenset[str]:
    """All that a document of this record may have."""
    keys: set[str] = set()
    for field in _fields(kind):
        keys |= _keys(field.hint) if field.metadata.get("flatten") else {field.key}
        keys |= {field.metadata["then"]} if "then" in field.metadata else set()
    return frozenset(keys)


def _read(hint: Any, value: Any, strict: bool, step: str = "") -> Any:
    """The value as this type; `step` leads to it. Raises _FaultError for any other."""
    try:
        if hint in _SCALARS:
            return _read_scalar(hint, value)
        if hint is Any:
            return value
        origin, members = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            (member,) = (member for member in members if member is not types.NoneType)
            return None if value is None else _read(member, value, strict)
        if origin is tuple:
            return _read_tuple(members, value, strict)
        if origin is not None:
            return _read_mapping(members[0], members[1], value, strict)
        if dataclasses.is_dataclass(hint):
            return _read_record(hint, value, strict)
        try:
            return hint(value)
        except ValueError:
            raise _wrong(value, ", ".join(str(member.value) for member in hint)) from None
    except _FaultError as fault:
        fault.path = step + fault.path
        raise


def _read_scalar(kind: Any, value: Any) -> Any:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise _wrong(value, _SCALARS[kind])
    if kind in (int, float) and not abs(value) <= _MOST:
        raise _FaultError("the number is too large, or none", _SCALARS[kind])
    return kind(value)


def _read_tuple(members: tuple[Any, ...], value: Any, strict: bool) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _wrong(value, "a list")
    if members[-1] is Ellipsis:
        members = members[:1] * len(value)
    elif len(members) != len(value):
        raise _wrong(value, f"a list of {len(members)}")
    pairs = enumerate(zip(members, value, strict=True))
    return tuple(_read(member, each, strict, f"[{index}]") for index, (member, each) in pairs)


def _read_mapping(key_hint: Any, hint: Any, value: Any, strict: bool) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object")
    document = {}
    for key, member in value.items():
        step = f".{str(key)[:40]}"
        known = int(key) if key_hint is int and str(key).isdecimal() else key
        document[_read(key_hint, known, strict, step)] = _read(hint, member, strict, step)
    return document


def _read_record(kind: Any, value: Any, strict: bool) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(value, "an object")
    known = _keys(kind)
    if strict and (unknown := [key for key in value if key not in known]):
        raise _FaultError(f"there is no key {str(unknown[0])[:80]!a}", ", ".join(field.key for field in _fields(kind)))
    given: dict[str, Any] = {}
    for field in _fields(kind):
        if field.metadata.get("flatten"):
            given[field.name] = _read_record(field.hint, value, strict=False)
        elif field.key in value and "read" in field.metadata:
            try:
                given[field.name] = field.metadata["read"](value[field.key])
            except (PlannerError, ValueError, KeyError, TypeError) as wrong:
                raise _FaultError(f"{field.key} cannot be read: {wrong}") from None
        elif field.key in value:
            given[field.name] = _read(field.hint, value[field.key], strict, f".{field.key}")
        elif field.default is dataclasses.MISSING:
            raise _FaultError(f"{field.key} is missing")
    return kind(**given)


def _wrong(value: Any, allowed: str) -> _FaultError:
    if isinstance(value, int) and not abs(value) <= _MOST:
        return _FaultError("the number is too large", allowed)
    shown = f"a {type(value).__name__}" if isinstance(value, Mapping | list | tuple) else ascii(value)[:80]
    return _FaultError(f"{shown} is of a wrong type", allowed)
