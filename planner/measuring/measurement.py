"""A measurement as values, and as one line of JSON: what one rank's step really took on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import MeasureError
from planner.events import Phase
from planner.measuring.reading import read_as

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
