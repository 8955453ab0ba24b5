"""Replays a recorded snapshot and compares every address and every segment with what the GPU's allocator did."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import OTHER_STREAM, Recording, recordings
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.snapshot import Snapshot, TraceEntry
from planner.errors import SnapshotError
from planner.events import Alloc, EmptyCache, Event, Free, Use
from planner.records import shape, to_plain


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
    """One device's replay; `what_if` is there only where it was asked for."""

    device: int
    events: int
    addresses: MatchCount
    segments: MatchCount
    blocks_before: int
    """Blocks that were there before the first entry, put where they were and not replayed; and their bytes."""
    bytes_before: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    first_difference: Difference | None
    what_if: WhatIf | None = field(default=None, metadata=shape(omit_default=True))


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What `planner replay` has to say."""

    devices: tuple[DeviceReport, ...]

    @property
    def exact(self) -> bool:
        """Whether every decision of every device was replayed."""
        return all(report.first_difference is None for report in self.devices)

    def to_json(self) -> dict[str, Any]:
        """The contract `planner.replay/1`."""
        return {"schema": "planner.replay/1", **to_plain(self)}


Watch = Callable[[Recording, int, CachingAllocator], None]
"""Told of each event of a recording, by its index, after the allocator has taken it; -1 before the first."""


def verify(
    snapshot: Snapshot, conf: str | None = None, capacity_bytes: int | None = None, watch: Watch | None = None
) -> ReplayReport:
    """Replays a snapshot under the rules it was recorded with; `watch` looks on.

    With `conf`, also says what that PYTORCH_ALLOC_CONF would have reserved, on a device that has `capacity_bytes` for
    it (None: as much as it takes). Raises SnapshotError for a snapshot that cannot be replayed, AllocatorConfError for
    a conf that is not modelled.
    """
    rules = Rules.from_conf(snapshot.conf)
    other = None if conf is None else Rules.from_conf(conf)
    reports = []
    try:
        for recording in recordings(snapshot, rules):
            what_if = None
            if conf is not None and other is not None:
                what_if = _what_if(recording, conf, other, capacity_bytes)
            reports.append(replace(_compare(recording, rules, watch), what_if=what_if))
    except OverflowError:
        raise SnapshotError("its blocks add up to more than 2**63 bytes", allowed="what a device can hold") from None
    return ReplayReport(tuple(reports))


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
        left, entries = Counter(self._left), []
        for entry in self._expected:
            asked = _without_stream(entry)
            if left[asked] > 0:
                left[asked] -= 1
                entries.append(entry)
        return entries

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


def _compare(recording: Recording, rules: Rules, watch: Watch | None) -> DeviceReport:
    """One device's replay beside its recording."""
    device = _RecordedDevice()
    allocator = start_allocator(recording, rules, device)
    bytes_before = peak_allocated = allocator.allocated
    matched_addresses = segments_missed = 0
    first: Difference | None = None
    if watch is not None:
        watch(recording, -1, allocator)
    for index, event in enumerate(recording.events):
        device.expect(recording.changes.get(index, ()))
        if isinstance(event, Alloc):
            block = allocator.malloc(event.block, event.requested_bytes, event.stream)
            assert block is not None  # the recorded device is without end
            address = recording.addresses[event.block]
            if block.address == address:
                matched_addresses += 1
            else:
                first = first or Difference(index, "address", f"{address:#x}", f"{block.address:#x}")
        else:
            allocator.take(event)
        peak_allocated = max(peak_allocated, allocator.allocated)
        if watch is not None:
            watch(recording, index, allocator)
        if not device.is_as_expected:
            recorded = [f"{entry.action} of {entry.size} bytes at {entry.address:#x}" for entry in device.expected]
            replayed, device.unexpected = device.unexpected, []
            segments_missed += max(len(recorded), len(replayed))
            first = first or Difference(
                index, "segment", ", ".join(recorded) or "nothing", ", ".join(replayed) or "nothing"
            )
    return DeviceReport(
        device=recording.device,
        events=len(recording.events),
        addresses=MatchCount(matched_addresses, len(recording.addresses)),
        segments=MatchCount(device.matched, device.matched + segments_missed),
        blocks_before=sum(piece.block is not None for segment in recording.start for piece in segment.stretches),
        bytes_before=bytes_before,
        peak_allocated_bytes=peak_allocated,
        peak_reserved_bytes=allocator.peak_reserved,
        first_difference=first,
    )


def _what_if(recording: Recording, conf: str, rules: Rules, capacity_bytes: int | None) -> WhatIf:
    events, changes = recording.events, recording.changes
    timeline = replay([*allocations_before(recording), *events], rules, capacity_bytes)
    # Memory was given back right before more was taken.
    short_of_memory = any(isinstance(events[index], EmptyCache) and index + 1 in changes for index in changes)
    return WhatIf(
        conf=conf,
        peak_allocated_bytes=timeline.peak_allocated_bytes,
        peak_reserved_bytes=timeline.peak_reserved_bytes,
        out_of_memory=timeline.out_of_memory is not None,
        exact=not recording.start and not short_of_memory,
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
