"""Which parts of expandable segments had memory when a trace began.

A snapshot names the mapped stretches at the end only; undoing the maps and unmaps gives those at the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.allocator.intervals import Intervals
from planner.allocator.rules import Rules
from planner.allocator.snapshot import SnapshotSegment, TraceEntry
from planner.units import TIB

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
