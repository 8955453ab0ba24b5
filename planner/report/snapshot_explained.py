"""A recorded snapshot explained: what the allocator decided, and which line of the program held how much and when."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import Recording
from planner.allocator.snapshot import snapshot_of_bytes
from planner.allocator.verify import verify
from planner.events import Alloc, Category, Free
from planner.report.attribution import HolderKey
from planner.report.class_timeline import moments_to_json
from planner.report.moments import largest_at
from planner.report.recorded_frames import frames_of, own_line
from planner.report.series import Places, moments_of

POINTS = 700
_BEFORE = HolderKey(Category.OTHER, "held before the recording began", "", (), "")
_UNKNOWN = HolderKey(Category.OTHER, "no frames were recorded", "", (), "")


def explain(packed: bytes, conf: str | None = None, place: str = "the body") -> dict[str, Any]:
    """`planner.replay/1` with a `timeline` and the failures of each device; `conf`: what another
    PYTORCH_ALLOC_CONF would have reserved.

    Raises SnapshotError for what is no snapshot, AllocatorConfError for a conf that is not modelled.
    """
    snapshot, content = snapshot_of_bytes(packed, place)
    watched: dict[int, _Watched] = {}

    def watch(recording: Recording, index: int, allocator: CachingAllocator) -> None:
        if index < 0:
            watched[recording.device] = _Watched(recording, content["device_traces"][recording.device])
        watched[recording.device].look(index, allocator)

    found = verify(snapshot, conf, watch=watch).to_json()
    for device in found["devices"]:
        number = device["device"]
        device["timeline"] = watched[number].to_json()
        device["out_of_memory"] = [
            {"requested_bytes": entry["size"], "free_bytes": entry.get("device_free")}
            for entry in content["device_traces"][number]
            if entry["action"] == "oom"
        ]
    return {**found, "conf": snapshot.conf}


@dataclass(slots=True)
class _Watched:
    """One device's allocator, event by event."""

    recording: Recording
    entries: Sequence[Mapping[str, Any]]
    allocated: array[int] = field(default_factory=lambda: array("q"))
    reserved: array[int] = field(default_factory=lambda: array("q"))
    _changes: list[tuple[int, HolderKey, int]] = field(default_factory=list)
    _latest: int = 0
    _held: dict[int, tuple[HolderKey, int]] = field(default_factory=dict)
    _frames: Iterator[HolderKey] = field(init=False)

    def __post_init__(self) -> None:
        # Allocations of the trace and of its events have the same order.
        self._frames = (_holder_of(entry) for entry in self.entries if entry["action"] == "alloc")

    def look(self, index: int, allocator: CachingAllocator) -> None:
        before, self._latest = self._latest, allocator.allocated
        if index < 0:
            self._look_at_start()
            return
        event = self.recording.events[index]
        if isinstance(event, Alloc):
            self._held[event.block] = next(self._frames), allocator.allocated - before
            self._changes.append((index, *self._held[event.block]))
        elif isinstance(event, Free) and event.block in self._held:
            key, size = self._held.pop(event.block)
            self._changes.append((index, key, -size))
        self.allocated.append(allocator.allocated)
        self.reserved.append(allocator.reserved)

    def to_json(self) -> dict[str, Any]:
        """In the form of planner.report.class_timeline, of which there are no phases and no categories."""
        at = moments_of(self.allocated, POINTS)
        places = Places(at, [self.allocated[each] for each in at], [(0, len(self.allocated))])
        peak = max(range(len(self.allocated)), key=self.allocated.__getitem__, default=0)
        return {
            "events": len(self.allocated),
            "capacity_bytes": 0,
            "outside_bytes": 0,
            "peak": {"event": peak, "allocated_bytes": self.allocated[peak] if self.allocated else 0},
            "at": at,
            "places": [places.of(event) for event in at],
            "allocated_bytes": {"allocated": [self.allocated[each] for each in at]},
            "reserved_bytes": [self.reserved[each] for each in at],
            "phases": [],
            **moments_to_json(largest_at(self._changes, at, most=10)),
        }

    def _look_at_start(self) -> None:
        for segment in self.recording.start:
            for piece in segment.stretches:
                if piece.block is not None and not piece.waiting:
                    self._held[piece.block] = _BEFORE, piece.size
                    self._changes.append((0, _BEFORE, piece.size))


def _holder_of(entry: Mapping[str, Any]) -> HolderKey:
    line = own_line(frames_of(entry))
    return HolderKey(Category.OTHER, line, "", (), "") if line else _UNKNOWN
