"""From a snapshot's trace to events, and to the state in which the trace began."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

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


@dataclass(frozen=True, slots=True)
class Range:
    """A range of addresses that an expandable segment had when the trace began."""

    segment: SnapshotSegment
    mapped: Stretches


def ranges_at_start(segments: Sequence[SnapshotSegment], trace: Sequence[TraceEntry], rules: Rules) -> list[Range]:
    """The expandable segments of one device before the first entry; one per stream and pool, as upstream makes them."""
    pools, page = _pools(segments, trace, rules), rules.small_segment_bytes
    mapped: dict[tuple[int, bool], Intervals] = {}
    changes: dict[tuple[int, bool], list[TraceEntry]] = {}
    for segment in segments:
        if segment.expandable:
            here = mapped.setdefault((segment.stream, segment.small), Intervals())
            here.add(segment.address, _end(segment.address, segment.size, page))
    for entry in reversed(trace):
        if entry.action in ("segment_map", "segment_unmap"):
            pool = pools[entry.address, entry.stream]
            changes.setdefault(pool, []).append(entry)
            _change(mapped.setdefault(pool, Intervals()), entry, page, grows=entry.action == "segment_unmap")
    found = []
    for (stream, small), here in mapped.items():
        if not here:
            continue
        stretches = here.stretches
        lower = _mapped_lower(here, reversed(changes.get((stream, small), [])), page)
        start = min(stretches[0][0], lower)
        segment = SnapshotSegment(0, start, TIB, stream, small, True, ())
        found.append(Range(segment, stretches))
    return _apart(found)


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
    addresses: dict[int, list[int]] = {}
    for address, stream in sorted(known):
        addresses.setdefault(stream, []).append(address)
    pools = {}
    for entry in trace:
        if entry.action == "segment_map":
            pools[entry.address, entry.stream] = (entry.stream, known[entry.address, entry.stream])
        elif entry.action == "segment_unmap":
            near = _nearest(addresses.get(entry.stream, []), entry.address)
            small = known[near, entry.stream] if near is not None else entry.size % rules.large_segment_bytes != 0
            pools[entry.address, entry.stream] = (entry.stream, small)
    return pools


def _nearest(addresses: list[int], address: int) -> int | None:
    index = bisect_right(addresses, address)
    around = addresses[max(index - 1, 0) : index + 1]
    return min(around, key=lambda known: abs(known - address), default=None)


def _mapped_lower(now: Intervals, changes: Iterable[TraceEntry], page: int) -> int:
    """The lowest address that is mapped while the range lives, to which it reaches down; `now` is used up."""
    lowest = now.stretches[0][0]
    for entry in changes:
        if entry.action == "segment_map":
            lowest = min(lowest, entry.address)
        _change(now, entry, page, grows=entry.action == "segment_map")
        if not now:
            break
    return lowest


def _change(here: Intervals, entry: TraceEntry, page: int, *, grows: bool) -> None:
    end = _end(entry.address, entry.size, page)
    (here.add if grows else here.remove)(entry.address, end)


def _end(address: int, size: int, page: int) -> int:
    """Whole pages."""
    return address + -(-size // page) * page


def _apart(ranges: list[Range]) -> list[Range]:
    """Ranges that end where the next one begins; how long they really are is not recorded."""
    ordered = sorted(ranges, key=lambda r: r.segment.address)
    found = []
    for index, one in enumerate(ordered):
        s = one.segment
        end = ordered[index + 1].segment.address if index + 1 < len(ordered) else s.address + TIB
        size = min(TIB, end - s.address)
        found.append(Range(SnapshotSegment(s.device, s.address, size, s.stream, s.small, True, ()), one.mapped))
    return found


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


@dataclass(slots=True)
class _State:
    segments: dict[int, SnapshotSegment] = field(default_factory=dict)
    live: dict[int, _LiveBlock] = field(default_factory=dict)


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
    trace: Sequence[TraceEntry], segments: Sequence[SnapshotSegment], device: int, rules: Rules
) -> Recording:
    if any(segment.private for segment in segments):
        raise SnapshotError(
            "the snapshot has private memory pools (CUDA graphs, torch.cuda.MemPool), which are not modelled",
            remedy="record the step without CUDA graphs",
        )
    state = _undo(trace, segments, rules)
    ranges = ranges_at_start(segments, trace, rules)
    state.segments.update((r.segment.address, r.segment) for r in ranges)
    _measure_blocks(state, trace, rules)
    mapped = {r.segment.address: r.mapped for r in ranges}
    names = {address: name for name, address in enumerate(sorted(state.live))}
    inside: dict[int, list[int]] = {address: [] for address in state.segments}
    starts = sorted(state.segments)
    for address in names:
        inside[_segment_of(address, starts)].append(address)
    start = tuple(
        _start_segment(state.segments[a], inside[a], state, names, mapped.get(a, ((a, a + state.segments[a].size),)))
        for a in starts
    )
    return _events(device, trace, start, names)


def _segment_of(address: int, starts: list[int]) -> int:
    index = bisect_right(starts, address) - 1
    if index < 0:
        raise SnapshotError(f"the block at {address:#x} lies in no segment")
    return starts[index]


def _undo(trace: Sequence[TraceEntry], segments: Sequence[SnapshotSegment], rules: Rules) -> _State:
    """The segments and blocks before the first entry."""
    state = _State({segment.address: segment for segment in segments if not segment.expandable})
    for segment in segments:
        for block in segment.blocks:
            if not block.free:
                state.live[block.address] = _LiveBlock(block.requested_bytes, block.size, True, block.waiting)
    for index in range(len(trace) - 1, -1, -1):
        entry = trace[index]
        action = entry.action
        if action == "alloc":
            if state.live.pop(entry.address, None) is None:
                raise _contradiction(index, entry, "no block is there afterwards")
        elif action == "free_completed":
            if entry.address in state.live:
                raise _contradiction(index, entry, "a block is still there afterwards")
            size = rules.round_size(entry.size)
            state.live[entry.address] = _LiveBlock(entry.size, size, False, True)
        elif action == "free_requested":
            if entry.address not in state.live:
                raise _contradiction(index, entry, "the block was never free afterwards")
            state.live[entry.address].waiting = False
        elif action == "segment_alloc":
            if state.segments.pop(entry.address, None) is None:
                raise _contradiction(index, entry, "the segment is not there afterwards")
        elif action == "segment_free":
            small = entry.size == rules.small_segment_bytes
            state.segments[entry.address] = SnapshotSegment(
                0, entry.address, entry.size, entry.stream, small, False, ()
            )
        elif action not in _NO_CHANGE and action not in ("segment_map", "segment_unmap"):
            raise SnapshotError(
                f"trace entry {index} is {action!r}, which this version does not know",
                allowed=", ".join(("alloc", "free_requested", "free_completed", *sorted(_GROWS), *sorted(_SHRINKS))),
            )
    return state


def _measure_blocks(state: _State, trace: Sequence[TraceEntry], rules: Rules) -> None:
    """Finds the true size of blocks that were there at the start and freed in the trace.

    A block of the large pool can be larger than asked for by a rest too small to be cut off. Nothing else is ever
    put there, and free memory behind the block is used from its lowest address on. So the block reaches up to the
    next block, or to the end of its segment, wherever that is nearer than the largest such rest.
    """
    starts = sorted(state.segments)
    room: dict[int, int] = {}
    for address, block in state.live.items():
        segment = state.segments[_segment_of(address, starts)]
        if not (block.known or segment.small or segment.expandable):
            room[address] = segment.address + segment.size - address
    unknown, gone = sorted(room), set[int]()
    for address in chain(state.live, _allocated_while_alive(trace, gone)):
        below = bisect_left(unknown, address) - 1
        if below >= 0 and unknown[below] not in gone:
            room[unknown[below]] = min(room[unknown[below]], address - unknown[below])
    for address, most in room.items():
        block = state.live[address]
        if most <= block.size + _longest_rest(block.size, rules):
            block.size = most


def _allocated_while_alive(trace: Sequence[TraceEntry], gone: set[int]) -> Iterator[int]:
    """Addresses of the trace's allocations; what was freed before each is put into `gone`."""
    for entry in trace:
        if entry.action == "alloc":
            yield entry.address
        elif entry.action == "free_completed":
            gone.add(entry.address)


def _longest_rest(size: int, rules: Rules) -> int:
    if rules.max_split_bytes is not None and size >= rules.max_split_bytes:
        return rules.max_non_split_rounding_bytes
    return rules.largest_unsplit_rest_bytes


def _start_segment(
    segment: SnapshotSegment, inside: list[int], state: _State, names: dict[int, int], mapped: Stretches
) -> StartSegment:
    """The segment with the blocks at the addresses `inside`; between them is free memory, or none."""
    stretches: list[SegmentPiece] = []
    address, end = segment.address, segment.address + segment.size
    for start in inside:
        block = state.live[start]
        if start < address:
            raise SnapshotError(f"blocks overlap at address {start:#x} when the trace begins")
        stretches += _gap(address, start, mapped)
        stretches.append(SegmentPiece(block.size, names[start], block.requested_bytes, block.waiting))
        address = start + block.size
    if address > end:
        raise SnapshotError(f"a block reaches beyond its segment at address {segment.address:#x}")
    stretches += _gap(address, end, mapped)
    return StartSegment(
        segment.address, segment.size, segment.stream, segment.small, segment.expandable, tuple(stretches)
    )


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


def _contradiction(index: int, entry: TraceEntry, reason: str) -> SnapshotError:
    return SnapshotError(
        f"trace entry {index} ({entry.action} at {entry.address:#x}) contradicts the segments: {reason}",
        remedy="take the snapshot while no other thread allocates",
    )
