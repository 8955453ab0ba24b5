"""Replays a recorded snapshot and compares every address and every segment with what the GPU's allocator did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import OTHER_STREAM, Recording, recordings
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.snapshot import Snapshot, TraceEntry, read_snapshot
from planner.errors import SnapshotError
from planner.events import Alloc, EmptyCache, Event, Free, Use


@dataclass(frozen=True, slots=True)
class MatchCount:
    """How many of the recorded decisions the replay made too, and how many there were in both together."""

    matched: int
    total: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision in which replay and recording differ."""

    event: int
    what: str
    """`address` or `segment`."""
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What another PYTORCH_ALLOC_CONF would have reserved for the same events."""

    conf: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    out_of_memory: bool
    """Whether it ran out at the capacity that was given."""
    exact: bool
    """False where the trace began with blocks that nobody saw allocated, or where memory was given back just before
    more was taken: then the recorded process may have been short of memory, which the other one need not be."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    device: int
    events: int
    addresses: MatchCount
    segments: MatchCount
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    first_difference: Difference | None
    what_if: WhatIf | None = None

    def to_json(self) -> dict[str, Any]:
        """This device's part of `planner.replay/1`; `what_if` is there only where it was asked for."""
        first = self.first_difference
        report: dict[str, Any] = {
            "device": self.device,
            "events": self.events,
            "addresses": {"matched": self.addresses.matched, "total": self.addresses.total},
            "segments": {"matched": self.segments.matched, "total": self.segments.total},
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "first_difference": None
            if first is None
            else {
                "event": first.event,
                "what": first.what,
                "recorded": first.recorded,
                "replayed": first.replayed,
            },
        }
        if self.what_if is not None:
            report["what_if"] = {
                "conf": self.what_if.conf,
                "peak_allocated_bytes": self.what_if.peak_allocated_bytes,
                "peak_reserved_bytes": self.what_if.peak_reserved_bytes,
                "out_of_memory": self.what_if.out_of_memory,
                "exact": self.what_if.exact,
            }
        return report


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What `planner replay` has to say."""

    devices: tuple[DeviceReport, ...]

    @property
    def exact(self) -> bool:
        """Whether every decision of every device was replayed."""
        return all(d.first_difference is None for d in self.devices)

    def to_json(self) -> dict[str, Any]:
        """The contract `planner.replay/1`."""
        return {"schema": "planner.replay/1", "devices": [device.to_json() for device in self.devices]}


def verify_snapshot(path: Path, conf: str | None = None, capacity_bytes: int | None = None) -> ReplayReport:
    """Replays the snapshot at `path` under the rules it was recorded with.

    With `conf`, also says what that PYTORCH_ALLOC_CONF would have reserved, on a device that has `capacity_bytes`
    for it (None: as much as it takes). Raises SnapshotError for a file that
    cannot be replayed, AllocatorConfError for a conf that is not modelled.
    """
    return verify(read_snapshot(path), conf, capacity_bytes)


Watch = Callable[[Recording, int, CachingAllocator], None]
"""Told of each event of a recording, by its index, after the allocator has taken it; -1 before the first."""


def verify(
    snapshot: Snapshot, conf: str | None = None, capacity_bytes: int | None = None, watch: Watch | None = None
) -> ReplayReport:
    """The same for a snapshot that was read already; `watch` looks on."""
    rules = Rules.from_conf(snapshot.conf)
    other = None if conf is None else Rules.from_conf(conf)
    try:
        devices = [_report(each, rules, conf, other, capacity_bytes, watch) for each in recordings(snapshot, rules)]
    except OverflowError:
        raise SnapshotError("its blocks add up to more than 2**63 bytes", allowed="what a device can hold") from None
    return ReplayReport(tuple(devices))


def _report(
    recording: Recording,
    rules: Rules,
    conf: str | None,
    other: Rules | None,
    capacity_bytes: int | None,
    watch: Watch | None,
) -> DeviceReport:
    what_if = None if other is None or conf is None else _what_if(recording, conf, other, capacity_bytes)
    return _Comparison(recording, rules).report(what_if, watch)


def start_allocator(recording: Recording, rules: Rules, device: Device) -> CachingAllocator:
    """An allocator in the state in which the recording begins."""
    allocator = CachingAllocator(rules, device)
    for segment in recording.start:
        allocator.adopt(segment)
    return allocator


class _RecordedDevice(Device):
    """Gives the addresses that the recorded device gave, and notes every request that was not recorded."""

    def __init__(self) -> None:
        super().__init__()
        self._expected: Sequence[TraceEntry] = ()
        self._left: Counter[TraceEntry] = Counter()
        self._maps: dict[TraceEntry, None] = {}
        self._allocs: dict[int, deque[TraceEntry]] = {}
        self.unexpected: list[str] = []
        self.matched = 0

    @property
    def expected(self) -> list[TraceEntry]:
        """What was recorded, and not asked for yet."""
        left, found = Counter(self._left), []
        for entry in self._expected:
            asked = _without_stream(entry)
            if left[asked] > 0:
                left[asked] -= 1
                found.append(entry)
        return found

    @property
    def is_as_expected(self) -> bool:
        """Whether nothing else was asked for than what was recorded, and all of that."""
        return not self._left and not self.unexpected

    def expect(self, entries: Sequence[TraceEntry]) -> None:
        """What the next event did to the recorded device. Looked up by what is asked for: an event may do much."""
        if not entries and not self._expected:
            return
        self._expected, self._left = entries, Counter(map(_without_stream, entries))
        self._maps = {_without_stream(entry): None for entry in entries if entry.action == "segment_map"}
        self._allocs = {}
        for entry in entries:
            if entry.action == "segment_alloc":
                self._allocs.setdefault(entry.size, deque()).append(entry)

    def take(self, size: int) -> int | None:
        self.taken_bytes += size
        if recorded := self._allocs.get(size):
            entry = recorded.popleft()
            self._match(entry)
            return entry.address
        self.unexpected.append(f"segment_alloc of {size} bytes")
        return super().take(size)

    def give_back(self, address: int, size: int) -> None:
        self.taken_bytes -= size
        self._expect("segment_free", address, size)

    def reserve_range(self, size: int) -> int:
        if self._maps:
            return next(iter(self._maps)).address
        return super().reserve_range(size)

    def map(self, address: int, size: int) -> bool:
        self._expect("segment_map", address, size)
        return super().map(address, size)

    def unmap(self, address: int, size: int) -> None:
        self._expect("segment_unmap", address, size)
        super().unmap(address, size)

    def _expect(self, action: str, address: int, size: int) -> None:
        entry = TraceEntry(action, address, size, 0)
        if entry in self._left:
            self._match(entry)
            return
        self.unexpected.append(f"{action} of {size} bytes at {address:#x}")

    def _match(self, entry: TraceEntry) -> None:
        asked = _without_stream(entry)
        self._left[asked] -= 1
        if not self._left[asked]:
            del self._left[asked]
            self._maps.pop(asked, None)
        self.matched += 1


def _without_stream(entry: TraceEntry) -> TraceEntry:
    """The entry without its stream, which is not compared."""
    return replace(entry, stream=0)


class _Comparison:
    """One device's replay beside its recording."""

    def __init__(self, recording: Recording, rules: Rules) -> None:
        self._recording = recording
        self._device = _RecordedDevice()
        self._allocator = start_allocator(recording, rules, self._device)
        self._first: Difference | None = None
        self._addresses = 0
        self._segments_missed = 0

    def report(self, what_if: WhatIf | None, watch: Watch | None) -> DeviceReport:
        recording, allocator = self._recording, self._allocator
        peak_allocated = allocator.allocated
        if watch is not None:
            watch(recording, -1, allocator)
        for index, event in enumerate(recording.events):
            self._device.expect(recording.changes.get(index, ()))
            self._step(index, event)
            peak_allocated = max(peak_allocated, allocator.allocated)
            if watch is not None:
                watch(recording, index, allocator)
            if not self._device.is_as_expected:
                self._note_segments(index)
        return DeviceReport(
            device=recording.device,
            events=len(recording.events),
            addresses=MatchCount(self._addresses, len(recording.addresses)),
            segments=MatchCount(self._device.matched, self._device.matched + self._segments_missed),
            peak_allocated_bytes=peak_allocated,
            peak_reserved_bytes=allocator.peak_reserved,
            first_difference=self._first,
            what_if=what_if,
        )

    def _step(self, index: int, event: Event) -> None:
        allocator = self._allocator
        if isinstance(event, Alloc):
            block = allocator.malloc(event.block, event.requested_bytes, event.stream)
            assert block is not None  # the recorded device is without end
            recorded = self._recording.addresses[event.block]
            if block.address == recorded:
                self._addresses += 1
            else:
                self._differ(index, "address", f"{recorded:#x}", f"{block.address:#x}")
        else:
            allocator.take(event)

    def _note_segments(self, index: int) -> None:
        recorded = [f"{entry.action} of {entry.size} bytes at {entry.address:#x}" for entry in self._device.expected]
        replayed = self._device.unexpected
        self._segments_missed += max(len(recorded), len(replayed))
        self._differ(index, "segment", ", ".join(recorded) or "nothing", ", ".join(replayed) or "nothing")
        self._device.unexpected = []

    def _differ(self, index: int, what: str, recorded: str, replayed: str) -> None:
        if self._first is None:
            self._first = Difference(index, what, recorded, replayed)


def _what_if(recording: Recording, conf: str, rules: Rules, capacity_bytes: int | None) -> WhatIf:
    timeline = replay([*allocations_before(recording), *recording.events], rules, capacity_bytes)
    return WhatIf(
        conf=conf,
        peak_allocated_bytes=timeline.peak_allocated_bytes,
        peak_reserved_bytes=timeline.peak_reserved_bytes,
        out_of_memory=timeline.out_of_memory is not None,
        exact=not recording.start and not _short_of_memory(recording),
    )


def allocations_before(recording: Recording) -> list[Event]:
    """What was there at the start, allocated on an empty device in order of address: in which order it really was is
    not recorded."""
    before: list[Event] = []
    for segment in recording.start:
        for stretch in segment.stretches:
            if stretch.block is None:
                continue
            before.append(Alloc(stretch.block, stretch.requested_bytes, segment.stream))
            if stretch.waiting:
                before += [Use(stretch.block, OTHER_STREAM), Free(stretch.block)]
    return before


def _short_of_memory(recording: Recording) -> bool:
    """Whether memory was ever given back right before more was taken."""
    events = recording.events
    return any(isinstance(events[i], EmptyCache) and i + 1 in recording.changes for i in recording.changes)
