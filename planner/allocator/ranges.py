"""Which parts of expandable segments had memory when a trace began.

A snapshot names the mapped stretches at the end only; undoing the maps and unmaps gives those at the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
    pools = _pools(segments, trace, rules)
    mapped: dict[tuple[int, bool], set[int]] = {}
    for segment in segments:
        if segment.expandable:
            pages = mapped.setdefault((segment.stream, segment.small), set())
            pages.update(range(segment.address, segment.address + segment.size, rules.small_segment_bytes))
    for entry in reversed(trace):
        if entry.action in ("segment_map", "segment_unmap"):
            pages = mapped.setdefault(pools[entry.address, entry.stream], set())
            changed = range(entry.address, entry.address + entry.size, rules.small_segment_bytes)
            if entry.action == "segment_map":
                pages.difference_update(changed)
            else:
                pages.update(changed)
    found = []
    for (stream, small), pages in mapped.items():
        if pages:
            start = min(pages | _mapped_lower(pages, trace, pools, (stream, small), rules))
            segment = SnapshotSegment(0, start, TIB, stream, small, True, ())
            found.append(Range(segment, _stretches(sorted(pages), rules.small_segment_bytes)))
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


def _mapped_lower(
    pages: set[int],
    trace: Sequence[TraceEntry],
    pools: dict[tuple[int, int], tuple[int, bool]],
    pool: tuple[int, bool],
    rules: Rules,
) -> set[int]:
    """Lower addresses that are mapped while the range lives: the range reaches down to them."""
    now, lower = set(pages), set[int]()
    for entry in trace:
        if entry.action not in ("segment_map", "segment_unmap") or pools[entry.address, entry.stream] != pool:
            continue
        changed = range(entry.address, entry.address + entry.size, rules.small_segment_bytes)
        if entry.action == "segment_map":
            lower.add(entry.address)
            now.update(changed)
        else:
            now.difference_update(changed)
        if not now:
            break
    return lower


def _stretches(pages: list[int], page: int) -> Stretches:
    found: list[tuple[int, int]] = []
    for address in pages:
        if found and found[-1][1] == address:
            found[-1] = (found[-1][0], address + page)
        else:
            found.append((address, address + page))
    return tuple(found)


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
