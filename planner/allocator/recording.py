"""From a snapshot's trace to events, and to the state in which the trace began."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.allocator.blocks import SegmentPiece, StartSegment
from planner.allocator.rules import Rules
from planner.allocator.snapshot import Snapshot, SnapshotSegment, TraceEntry
from planner.errors import SnapshotError
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Use
from planner.units import TIB


class Intervals:
    """Addresses, as stretches from a start to before an end, ascending and apart from each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Each start with its end."""
        return tuple(zip(self._starts, self._ends, strict=True))

    def add(self, start: int, end: int) -> None:
        """Takes in the addresses from `start` to before `end`."""
        if start >= end:
            return
        first, after = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < after:
            start, end = min(start, self._starts[first]), max(end, self._ends[after - 1])
        self._starts[first:after], self._ends[first:after] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Leaves out the addresses from `start` to before `end`."""
        if start >= end:
            return
        first, after = bisect_right(self._ends, start), bisect_left(self._starts, end)
        touched = zip(self._starts[first:after], self._ends[first:after], strict=True)
        pieces = (piece for one, other in touched for piece in ((one, min(other, start)), (max(one, end), other)))
        rest = [(one, other) for one, other in pieces if one < other]
        self._starts[first:after], self._ends[first:after] = [one for one, _ in rest], [other for _, other in rest]


Stretches = tuple[tuple[int, int], ...]
"""Mapped stretches: address and end, ascending, apart from each other."""


def _ranges_at_start(
    segments: Sequence[SnapshotSegment], trace: Sequence[TraceEntry], rules: Rules
) -> Iterator[tuple[SnapshotSegment, Stretches]]:
    """The expandable segments of one device before the first entry, one per stream and pool, as upstream makes them;
    each with what of it is mapped."""
    pools, page = _pools(segments, trace, rules), rules.small_segment_bytes
    mapped: dict[tuple[int, bool], Intervals] = defaultdict(Intervals)
    changes: dict[tuple[int, bool], list[TraceEntry]] = defaultdict(list)
    for segment in segments:
        if segment.expandable:
            mapped[segment.stream, segment.small].add(segment.address, _end(segment, page))
    for entry in reversed(trace):
        if entry.action in ("segment_map", "segment_unmap"):
            pool = pools[entry.address, entry.stream]
            changes[pool].append(entry)
            _change(mapped[pool], entry, page, grows=entry.action == "segment_unmap")
    ranges = []
    for (stream, small), now in mapped.items():
        if now:
            stretches = now.stretches
            # A range reaches down to the lowest address that is mapped while it lives.
            lowest = stretches[0][0]
            for entry in reversed(changes[stream, small]):
                if entry.action == "segment_map":
                    lowest = min(lowest, entry.address)
                _change(now, entry, page, grows=entry.action == "segment_map")
                if not now:
                    break
            ranges.append((lowest, stream, small, stretches))
    ranges.sort()
    # A range ends where the next one begins; how long it really is is not recorded.
    for index, (address, stream, small, stretches) in enumerate(ranges):
        after = ranges[index + 1][0] if index + 1 < len(ranges) else address + TIB
        yield SnapshotSegment(0, address, min(TIB, after - address), stream, small, True, ()), stretches


def _pools(
    segments: Sequence[SnapshotSegment], trace: Sequence[TraceEntry], rules: Rules
) -> dict[tuple[int, int], tuple[int, bool]]:
    """To which stream and pool each mapped or unmapped address belongs: entries do not say which pool it is.

    The small pool grows by one small segment at a time, the large one by larger pages. What was only unmapped
    belongs to the nearest address that is known: to a mapped one, or to a block, whose size tells its pool.
    """
    known = {(s.address, s.stream): s.small for s in segments if s.expandable}
    for entry in trace:
        if entry.action == "segment_map":
            known[entry.address, entry.stream] = entry.size == rules.small_segment_bytes
        elif entry.action in ("alloc", "free_completed"):
            known.setdefault((entry.address, entry.stream), rules.round_size(entry.size) <= rules.small_bytes)
    addresses: dict[int, list[int]] = defaultdict(list)
    for address, stream in sorted(known):
        addresses[stream].append(address)
    pools = {}
    for entry in trace:
        key = (entry.address, entry.stream)
        if entry.action == "segment_map":
            pools[key] = (entry.stream, known[key])
        elif entry.action == "segment_unmap":
            candidates = addresses[entry.stream]
            index = bisect_right(candidates, entry.address)
            around = candidates[max(index - 1, 0) : index + 1]
            small = entry.size % rules.large_segment_bytes != 0
            if around:
                _, nearest = min((abs(address - entry.address), address) for address in around)
                small = known[nearest, entry.stream]
            pools[key] = (entry.stream, small)
    return pools


def _change(mapped: Intervals, entry: TraceEntry, page: int, *, grows: bool) -> None:
    (mapped.add if grows else mapped.remove)(entry.address, _end(entry, page))


def _end(mapped: SnapshotSegment | TraceEntry, page: int) -> int:
    """Whole pages."""
    return mapped.address + -(-mapped.size // page) * page


_GROWS = frozenset({"segment_alloc", "segment_map"})
_SHRINKS = frozenset({"segment_free", "segment_unmap"})
_NO_CHANGE = frozenset({"oom", "snapshot"})
OTHER_STREAM = -1
"""Stands for the stream that a waiting block was used on; the trace does not name it."""


@dataclass(frozen=True, slots=True)
class RecordedFailure:
    """A request that the recorded device could not serve, after the cache was released."""

    event: int
    """Index of the event that would have followed it."""
    size_bytes: int
    """As the allocator rounded it."""
    stream: int
    free_bytes: int | None
    """What the device had left; None where the trace does not say."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one device's allocator was told, and what it did."""

    device: int
    start: tuple[StartSegment, ...]
    events: tuple[Event, ...]
    addresses: dict[int, int]
    """Where each block allocated in the trace was put."""
    changes: dict[int, tuple[TraceEntry, ...]]
    """By event index: the segments that the event took from the device or gave back."""
    failures: tuple[RecordedFailure, ...] = ()


@dataclass(slots=True)
class _LiveBlock:
    """A block that is handed out or waiting, while entries are undone."""

    requested_bytes: int
    size: int
    """As far as known; what was freed in the trace is known only as asked for."""
    known: bool
    waiting: bool = False


def recordings(snapshot: Snapshot, rules: Rules) -> list[Recording]:
    """One recording for each device with a trace; of a snapshot without any, for each with segments: its end alone.

    `rules` are those of the recorded process. Raises SnapshotError if trace and segments contradict each other, or
    for what is not modelled.
    """
    segments: dict[int, list[SnapshotSegment]] = {}
    for segment in snapshot.segments:
        segments.setdefault(segment.device, []).append(segment)
    traces = {device: trace for device, trace in enumerate(snapshot.traces) if trace}
    return [
        _recording(traces.get(device, ()), segments.get(device, []), device, rules)
        for device in sorted(traces or segments)
    ]


def _recording(
    trace: Sequence[TraceEntry], segments_at_end: Sequence[SnapshotSegment], device: int, rules: Rules
) -> Recording:
    if any(segment.private for segment in segments_at_end):
        raise SnapshotError(
            "the snapshot has private memory pools (CUDA graphs, torch.cuda.MemPool), which are not modelled",
            remedy="record the step without CUDA graphs",
        )
    segments, live = _undo(trace, segments_at_end, rules)
    mapped: dict[int, Stretches] = {}
    for expandable, stretches in _ranges_at_start(segments_at_end, trace, rules):
        segments[expandable.address], mapped[expandable.address] = expandable, stretches
    starts = sorted(segments)
    _measure_blocks(segments, live, starts, trace, rules)
    names = {address: name for name, address in enumerate(sorted(live))}
    inside: dict[int, list[int]] = {address: [] for address in starts}
    for address in names:
        inside[_segment_of(address, starts)].append(address)
    begin = []
    for start in starts:
        segment = segments[start]
        at, end = start, start + segment.size
        with_memory = mapped.get(start, ((at, end),))
        pieces: list[SegmentPiece] = []
        for address in inside[start]:
            block = live[address]
            if address < at:
                raise SnapshotError(f"blocks overlap at address {address:#x} when the trace begins")
            pieces += _gap(at, address, with_memory)
            pieces.append(SegmentPiece(block.size, names[address], block.requested_bytes, block.waiting))
            at = address + block.size
        if at > end:
            raise SnapshotError(f"a block reaches beyond its segment at address {start:#x}")
        pieces += _gap(at, end, with_memory)
        begin.append(
            StartSegment(start, segment.size, segment.stream, segment.small, segment.expandable, tuple(pieces))
        )
    return _events(device, trace, tuple(begin), names)


def _segment_of(address: int, starts: list[int]) -> int:
    index = bisect_right(starts, address) - 1
    if index < 0:
        raise SnapshotError(f"the block at {address:#x} lies in no segment")
    return starts[index]


def _undo(
    trace: Sequence[TraceEntry], segments_at_end: Sequence[SnapshotSegment], rules: Rules
) -> tuple[dict[int, SnapshotSegment], dict[int, _LiveBlock]]:
    """The segments and blocks before the first entry, by address; without expandable segments."""
    segments = {segment.address: segment for segment in segments_at_end if not segment.expandable}
    live = {
        block.address: _LiveBlock(block.requested_bytes, block.size, True, block.waiting)
        for segment in segments_at_end
        for block in segment.blocks
        if not block.free
    }
    for index in range(len(trace) - 1, -1, -1):
        entry = trace[index]
        address, action = entry.address, entry.action
        contradiction = ""
        if action == "alloc":
            if live.pop(address, None) is None:
                contradiction = "no block is there afterwards"
        elif action == "free_completed":
            if address in live:
                contradiction = "a block is still there afterwards"
            live[address] = _LiveBlock(entry.size, rules.round_size(entry.size), False, True)
        elif action == "free_requested":
            if address in live:
                live[address].waiting = False
            else:
                contradiction = "the block was never free afterwards"
        elif action == "segment_alloc":
            if segments.pop(address, None) is None:
                contradiction = "the segment is not there afterwards"
        elif action == "segment_free":
            small = entry.size == rules.small_segment_bytes
            segments[address] = SnapshotSegment(0, address, entry.size, entry.stream, small, False, ())
        elif action not in _NO_CHANGE and action not in ("segment_map", "segment_unmap"):
            raise SnapshotError(
                f"trace entry {index} is {action!r}, which this version does not know",
                allowed=", ".join(("alloc", "free_requested", "free_completed", *sorted(_GROWS), *sorted(_SHRINKS))),
            )
        if contradiction:
            raise SnapshotError(
                f"trace entry {index} ({action} at {address:#x}) contradicts the segments: {contradiction}",
                remedy="take the snapshot while no other thread allocates",
            )
    return segments, live


def _measure_blocks(
    segments: Mapping[int, SnapshotSegment],
    live: Mapping[int, _LiveBlock],
    starts: list[int],
    trace: Sequence[TraceEntry],
    rules: Rules,
) -> None:
    """Finds the true size of blocks that were there at the start and freed in the trace.

    A block of the large pool can be larger than asked for by a rest too small to be cut off. Nothing else is ever
    put there, and free memory behind the block is used from its lowest address on. So the block reaches up to the
    next block, or to the end of its segment, wherever that is nearer than the largest such rest.
    """
    room: dict[int, int] = {}
    for address, block in live.items():
        segment = segments[_segment_of(address, starts)]
        if not (block.known or segment.small or segment.expandable):
            room[address] = segment.address + segment.size - address
    unknown, gone = sorted(room), set[int]()

    def bound(address: int) -> None:
        below = bisect_left(unknown, address) - 1
        if below >= 0 and unknown[below] not in gone:
            room[unknown[below]] = min(room[unknown[below]], address - unknown[below])

    for address in live:
        bound(address)
    for entry in trace:
        if entry.action == "alloc":
            bound(entry.address)
        elif entry.action == "free_completed":
            gone.add(entry.address)
    for address, most in room.items():
        block = live[address]
        rest = rules.largest_unsplit_rest_bytes
        if rules.max_split_bytes is not None and block.size >= rules.max_split_bytes:
            rest = rules.max_non_split_rounding_bytes
        if most <= block.size + rest:
            block.size = most


def _gap(address: int, end: int, mapped: Stretches) -> Iterator[SegmentPiece]:
    for start, stop in mapped:
        if stop <= address or start >= end:
            continue
        if start > address:
            yield SegmentPiece(start - address, mapped=False)
            address = start
        yield SegmentPiece(min(stop, end) - address)
        address = min(stop, end)
    if address < end:
        yield SegmentPiece(end - address, mapped=False)


def _events(
    device: int, trace: Sequence[TraceEntry], start: tuple[StartSegment, ...], names: dict[int, int]
) -> Recording:
    """The trace as events; blocks of the start keep their names, the others are numbered on."""
    current = dict(names)
    events: list[Event] = []
    addresses: dict[int, int] = {}
    changes: dict[int, tuple[TraceEntry, ...]] = {}
    taken: list[TraceEntry] = []
    given: list[TraceEntry] = []
    failures: list[RecordedFailure] = []
    next_name = len(names)
    for index, entry in enumerate(trace):
        action = entry.action
        if action in _SHRINKS:
            given.append(entry)
            continue
        if given:
            changes[len(events)] = tuple(given)
            events.append(EmptyCache())
            given.clear()
        if action == "oom":
            failures.append(RecordedFailure(len(events), entry.size, entry.stream, entry.free_bytes))
        elif action in _GROWS:
            taken.append(entry)
        elif action == "alloc":
            if taken:
                changes[len(events)] = tuple(taken)
                taken.clear()
            current[entry.address] = next_name
            addresses[next_name] = entry.address
            events.append(Alloc(next_name, entry.size, entry.stream))
            next_name += 1
        elif action == "free_requested":
            name = current[entry.address]
            following = trace[index + 1] if index + 1 < len(trace) else None
            if following is None or (following.action, following.address) != ("free_completed", entry.address):
                events.append(Use(name, OTHER_STREAM))
            events.append(Free(name))
        elif action == "free_completed":
            previous = trace[index - 1] if index else None
            if previous is None or (previous.action, previous.address) != ("free_requested", entry.address):
                events.append(FreeCompleted(current[entry.address]))
    if given:
        changes[len(events)] = tuple(given)
        events.append(EmptyCache())
    return Recording(device, start, tuple(events), addresses, changes, tuple(failures))
