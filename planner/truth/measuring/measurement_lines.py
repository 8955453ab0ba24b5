"""A measurement of one rank's step as values, phase by phase, and the file in which each is one line of JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from planner.errors import MeasureError, SpecError
from planner.events import Alloc, Category, Event, Free, Mark, Phase, Role
from planner.job.json_text import read_json
from planner.records import from_document, shape, to_plain
from planner.units import MIB

SCHEMA = "planner.measurement/1"
_UNSEEN_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Bytes as `torch.cuda.memory_stats` names them; on a CPU all but the requested are 0."""

    requested_bytes: int = 0
    allocated_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0

    @classmethod
    def of(cls, stats: Mapping[str, int], which: str) -> Levels:
        """The `peak` or the `current` figures of `torch.cuda.memory_stats`; 0 for one that this torch or this backend
        of the allocator does not know."""
        return cls(**{name: stats.get(f"{name}.all.{which}", 0) for name in FIGURES})

    def highest(self, other: Levels) -> Levels:
        return Levels(**{name: max(getattr(self, name), getattr(other, name)) for name in FIGURES})


FIGURES = tuple(level.name for level in fields(Levels))


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

    case: str = field(metadata=shape(then="peak"))
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
        for phase in self.phases:
            highest = highest.highest(phase.peak)
        return highest


def to_json(measurement: Measurement) -> dict[str, Any]:
    """Plain values; `peak` is there for readers, and not read back."""
    return {"schema": SCHEMA, **to_plain(measurement)}


def from_json(document: Mapping[str, Any]) -> Measurement:
    """The measurement that :func:`to_json` wrote. Raises MeasureError if the document is none."""
    return from_document(
        Measurement, document, SCHEMA, "measurement", error=MeasureError, remedy="measure again", strict=False
    )


class Phases:
    """The phases so far, in the order of their beginnings; micro-batches of an iteration are taken together."""

    def __init__(self) -> None:
        self._phases: dict[tuple[Phase, int], MeasuredPhase] = {}

    def add(self, phase: Phase, iteration: int, peak: Levels, end: Levels, device_bytes: int = 0) -> None:
        before = self._phases.get((phase, iteration))
        if before is not None:
            peak, device_bytes = before.peak.highest(peak), max(before.device_bytes, device_bytes)
        measured = MeasuredPhase(phase=phase, iteration=iteration, peak=peak, end=end, device_bytes=device_bytes)
        self._phases[(phase, iteration)] = measured

    def all(self) -> tuple[MeasuredPhase, ...]:
        return tuple(self._phases.values())


HOST_ONLY = ("step",)
"""State that optimizers keep on the host whatever the device is."""


def phases_of(events: Sequence[Event]) -> tuple[MeasuredPhase, ...]:
    """Requested bytes by phase and iteration; what comes before the first mark belongs to the loading."""
    phases, sizes = Phases(), {}
    now = peak = 0
    mark = Mark(Phase.LOAD, 0)
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.requested_bytes
            now += event.requested_bytes
            peak = max(peak, now)
        elif isinstance(event, Free):
            now -= sizes[event.block]
        elif isinstance(event, Mark):
            phases.add(mark.phase, mark.iteration, Levels(requested_bytes=peak), Levels(requested_bytes=now))
            mark, peak = event, now
    phases.add(mark.phase, mark.iteration, Levels(requested_bytes=peak), Levels(requested_bytes=now))
    return phases.all()


def most_by_category(events: Sequence[Event]) -> dict[str, int]:
    """The most bytes that each category ever held at a time, of blocks that carry a role."""
    sizes: dict[int, int] = {}
    category: dict[int, Category] = {}
    now: Counter[Category] = Counter()
    most: dict[str, int] = {}
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.requested_bytes
        elif isinstance(event, Free):
            if event.block in category:
                now[category.pop(event.block)] -= sizes[event.block]
        elif isinstance(event, Role) and event.name.rpartition(".")[2] not in HOST_ONLY:
            if event.block in category:
                now[category[event.block]] -= sizes[event.block]
            category[event.block] = event.category
            now[event.category] += sizes[event.block]
            most[event.category.value] = max(most.get(event.category.value, 0), now[event.category])
    return dict(sorted(most.items()))


MOST_BYTES = 256 * MIB
"""Of a file: some ten thousand measurements."""


def line(measurement: Measurement) -> str:
    return json.dumps(to_json(measurement), separators=(",", ":"), sort_keys=False, allow_nan=False)


def append(path: Path, measurements: Iterable[Measurement]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line(measurement)}\n" for measurement in measurements)


def read(path: Path) -> list[Measurement]:
    """All measurements of a file, in its order. Raises MeasureError with the line for one that cannot be read."""
    content = bytearray()
    try:
        with path.open("rb") as file:
            # Chunk by chunk: one read of the most would take it at once, and a device has no end.
            while len(content) <= MOST_BYTES and (chunk := file.read(MIB)):
                content += chunk
        if len(content) > MOST_BYTES:
            problem = f"{path} is larger than {MOST_BYTES // MIB} MiB"
            raise MeasureError(problem, allowed="a file that planner measure wrote")
        lines = content.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MeasureError(f"{path} cannot be read: {reason}", allowed="a file that planner measure wrote") from None
    measurements = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        place = f"{path}:{number}"
        try:
            document = read_json(text, place)
        except SpecError as error:
            raise MeasureError(f"this line must be a JSON object: {error.problem}", place=place) from None
        if not isinstance(document, dict):
            raise MeasureError("this line must be a JSON object", place=place)
        try:
            measurements.append(from_json(document))
        except MeasureError as error:
            raise MeasureError(error.problem, allowed=error.allowed, place=f"{place} {error.place}".strip()) from error
    return measurements
