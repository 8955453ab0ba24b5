"""A measurement of one rank's step as values, and the file in which each is one line of JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.errors import MeasureError, SpecError
from planner.events import Phase
from planner.job.json_text import read_json
from planner.units import MIB

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


SCHEMA = "planner.measurement/1"
_UNSEEN_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Bytes as `torch.cuda.memory_stats` names them; on a CPU all but the requested are 0."""

    requested_bytes: int = 0
    allocated_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0

    def highest(self, other: Levels) -> Levels:
        """The higher of each figure."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Levels(**dict(zip(_LEVELS, (max(pair) for pair in pairs), strict=True)))


_LEVELS = tuple(each.name for each in dataclasses.fields(Levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPhase:
    """One phase of one iteration, its micro-batches taken together. `device_bytes`: NVML's figure at its end."""

    phase: Phase
    iteration: int
    peak: Levels
    end: Levels
    device_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device: `kind` is cuda or cpu; `total_bytes` as its driver reports them."""

    kind: str
    name: str = ""
    total_bytes: int = 0
    arch: str = ""
    multiprocessors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Where the step ran out of memory, and torch's own words."""

    phase: Phase
    iteration: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """How far a measurement on a CPU can be believed: it counts if `believed`.

    `net_bytes` is what the profiler saw allocated and not freed, `live_bytes` what the storages of live tensors hold.
    What C++ keeps where Python cannot see it (the reducer's map of used parameters) stays below a KiB.
    """

    runs: int
    agreeing: int
    net_bytes: int
    live_bytes: int

    @property
    def believed(self) -> bool:
        return self.agreeing >= 2 and 0 <= self.net_bytes - self.live_bytes < _UNSEEN_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One step (or one operator) on one device. `job` is the bundle, empty for an operator."""

    case: str
    job: Mapping[str, Any]
    device: DeviceFacts
    software: Mapping[str, str]
    date: str
    phases: tuple[MeasuredPhase, ...] = ()
    rank: int = 0
    world_size: int = 1
    peers: str = "none"
    """none: a world of one; absent: a fake process group; present: gloo or nccl."""
    allocator_conf: str = ""
    seconds: float = 0.0
    categories: Mapping[str, int] = field(default_factory=dict)
    """Requested bytes at the end by identity of tensors: parameter, gradient (the largest set), bucket, ..."""
    memory_stats: Mapping[str, int] = field(default_factory=dict)
    context_bytes: int = 0
    """Device bytes of this process between the creation of its CUDA context and its first tensor; 0: not known."""
    device_bytes_by: str = ""
    """Where device bytes come from: process (NVML, this process), device (all of the device's used bytes)."""
    ddp: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[tuple[str, int, int], ...] = ()
    """Phase, iteration, microseconds of the clock that the snapshot uses."""
    out_of_memory: OutOfMemory | None = None
    error: str = ""
    truth: Truth | None = None
    snapshot: str = ""
    operator: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peak(self) -> Levels:
        """The highest of all phases, each figure at its own moment."""
        highest = Levels()
        for each in self.phases:
            highest = highest.highest(each.peak)
        return highest


def to_json(measurement: Measurement) -> dict[str, Any]:
    """Plain values; `peak` is there for readers, and not read back."""
    return {
        "schema": SCHEMA,
        "case": measurement.case,
        "peak": dataclasses.asdict(measurement.peak),
        **{name: _plain(getattr(measurement, name)) for name in _FIELDS if name != "case"},
    }


def from_json(document: Mapping[str, Any]) -> Measurement:
    """The measurement that :func:`to_json` wrote. Raises MeasureError if the document is none."""
    if document.get("schema") != SCHEMA:
        schema = document.get("schema")
        said = repr(schema[:80]) if isinstance(schema, str) else "none that is a text"
        raise MeasureError(f"a document of schema {said} is no measurement", allowed=SCHEMA)
    given = {name: document[name] for name in _FIELDS if name in document}
    try:
        found = read_as(Measurement, given, "measurement")
    except MeasureError as wrong:
        problem = f"the measurement cannot be read: {wrong.problem}"
        raise MeasureError(problem, allowed=wrong.allowed, remedy="measure again", place=wrong.place) from None
    assert isinstance(found, Measurement)
    return found


_FIELDS = tuple(each.name for each in dataclasses.fields(Measurement))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Phase):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


MOST_BYTES = 256 * MIB
"""Of a file: some ten thousand measurements."""


def line(measurement: Measurement) -> str:
    """The measurement as one line, without the newline."""
    return json.dumps(to_json(measurement), separators=(",", ":"), sort_keys=False, allow_nan=False)


def append(path: Path, measurements: Iterable[Measurement]) -> None:
    """Each as a line at the end of the file, which is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line(each)}\n" for each in measurements)


def read(path: Path) -> list[Measurement]:
    """All measurements of a file, in its order. Raises MeasureError with the line for one that cannot be read."""
    try:
        lines = _content(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise MeasureError(f"{path} cannot be read: {reason}", allowed="a file that planner measure wrote") from None
    found = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            document = read_json(text, f"{path}:{number}")
        except SpecError as error:
            raise MeasureError(f"this line is no JSON object: {error.problem}", place=f"{path}:{number}") from None
        if not isinstance(document, dict):
            raise MeasureError("this line is no JSON object", place=f"{path}:{number}")
        try:
            found.append(from_json(document))
        except MeasureError as error:
            raise MeasureError(error.problem, allowed=error.allowed, place=f"{path}:{number}") from error
    return found


def _content(path: Path) -> bytes:
    """Raises MeasureError for more than a file of measurements has, so that one without end has one."""
    content = bytearray()
    with path.open("rb") as file:
        while len(content) <= MOST_BYTES and (chunk := file.read(MIB)):  # one read of the most would take it at once
            content += chunk
    if len(content) > MOST_BYTES:
        raise MeasureError(
            f"{path} is larger than {MOST_BYTES // MIB} MiB", allowed="a file that planner measure wrote"
        )
    return bytes(content)
