"""A measurement of one rank as values, phase by phase, and the file in which each is one line of JSON."""

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
from planner.records import from_document, from_plain, shape, to_plain
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
    """The device: `kind` is cuda or cpu, or none; `total_bytes` as its driver reports them."""

    kind: str
    name: str = ""
    uuid: str = ""
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
    """One rank of a job or of a program, or one operator, on one device: the one of which it took the most.

    `job` is the bundle and `command` the launch line, each empty where the other is measured.
    """

    case: str = field(metadata=shape(then="peak"))
    job: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    device: DeviceFacts
    software: Mapping[str, str]
    date: str
    phases: tuple[MeasuredPhase, ...] = ()
    """Of a program that names none one, the loading, with the peaks of the whole process."""
    rank: int = 0
    world_size: int = 1
    peers: str = "none"
    """none: a world of one; absent: a fake process group; present: gloo or nccl."""
    host: str = ""
    processes: int = 1
    """How many processes of this rank took memory: restarts, or processes that the program starts itself. The
    figures are those of the one that took the most."""
    devices: int = 1
    """Of how many devices that process took memory."""
    allocator_conf: str = ""
    seconds: float = 0.0
    categories: Mapping[str, int] = field(default_factory=dict)
    """Requested bytes at the end by identity of tensors: parameter, gradient (the largest set), bucket, ..."""
    memory_stats: Mapping[str, int] = field(default_factory=dict)
    device_bytes_by: str = ""
    """Where device bytes come from: process (NVML, this process), device (all of the device's used bytes)."""
    exit_code: int = 0
    """Of the command, 128 and the signal's number if a signal ended it."""
    ended_by: str = ""
    """The exception that ended the process."""
    out_of_memory: OutOfMemory | None = None
    error: str = ""
    """Why there are no figures."""
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

    @property
    def outside_bytes(self) -> int:
        """The most beside the allocator at the end of a phase; 0 where the driver does not say what there was."""
        counted = (phase for phase in self.phases if phase.device_bytes)
        return max((phase.device_bytes - phase.end.reserved_bytes for phase in counted), default=0)


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
    if lines[:1] == ["{"]:
        return _read_program(read_json("\n".join(lines), str(path)))
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


PROGRAM_SCHEMA = "planner.measured-program/1"
"""One object with all ranks of a program, as planner measure -- COMMAND wrote it until December 2026."""
_WITHOUT_FIGURES = {"software": {}, "device": {"kind": "none"}}


def _read_program(document: Any) -> list[Measurement]:
    """The ranks by their number, those without figures among them. Raises MeasureError if it is not of a program."""
    try:
        if document["schema"] != PROGRAM_SCHEMA:
            raise MeasureError(f"a document of schema {document['schema']!r} is not a measurement", place="schema")
        about = {name: document[name] for name in ("command", "exit_code", "date", "seconds", "world_size")}
        about |= {"case": "", "peers": "present" if document["world_size"] > 1 else "none"}
        ranks = [_rank_of_program(rank) for rank in document["ranks"]]
        ranks += [
            {**_WITHOUT_FIGURES, "rank": rank["rank"], "error": rank["reason"]} for rank in document["without_figures"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise MeasureError(f"a measured program lacks something: {error}", remedy="measure again") from None
    read = [
        from_plain(Measurement, {**about, **rank}, "measured program", error=MeasureError, strict=False)
        for rank in ranks
    ]
    return sorted(read, key=lambda measurement: measurement.rank)


def _rank_of_program(rank: Mapping[str, Any]) -> dict[str, Any]:
    device_bytes = rank.get("device_bytes_at_end", 0)
    whole = {"phase": "load", "iteration": 0, "device_bytes": device_bytes}
    return {
        **{name: value for name, value in rank.items() if name not in ("peak", "end")},
        "device": {"kind": "cuda", "name": rank["gpu"], "uuid": rank["uuid"], "total_bytes": rank["total_bytes"]},
        "phases": [whole | {"peak": rank["peak"], "end": rank["end"]}],
        "device_bytes_by": "process" if device_bytes else "",
        "memory_stats": {"num_alloc_retries": rank.get("cache_releases", 0)},
    }
