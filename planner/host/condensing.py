"""Leaves out of what a rank did on the host what no highest point has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.host_events import Backing, HostAlloc, HostBlock, HostEvent, HostFree


def condense(events: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """The events without blocks that never count: the highest points of all phases are the same.

    Between two events of other kinds (a phase, a loader, pinned or shared memory) only plain blocks come and go. What
    is taken and given up between them is left out, but for what is there when such blocks are at their highest.
    """
    stretch: list[HostAlloc | HostFree] = []
    plain: dict[int, int] = {}
    for event in events:
        if isinstance(event, HostAlloc) and _is_plain(event.held):
            plain[event.block] = event.held.bytes * event.held.count
            stretch.append(event)
        elif isinstance(event, HostFree) and event.block in plain:
            stretch.append(event)
        else:
            yield from _condense_stretch(stretch, plain)
            stretch.clear()
            yield event
    yield from _condense_stretch(stretch, plain)


def _is_plain(held: HostBlock) -> bool:
    return not held.pinned and held.backing is Backing.OWN


def _condense_stretch(stretch: Sequence[HostAlloc | HostFree], sizes: Mapping[int, int]) -> Iterator[HostEvent]:
    born: dict[int, int] = {}
    passing: dict[int, tuple[int, int]] = {}
    now = highest = 0
    at = -1
    for place, event in enumerate(stretch):
        if isinstance(event, HostAlloc):
            born[event.block] = place
            now += sizes[event.block]
        else:
            now -= sizes[event.block]
            if event.block in born:
                passing[event.block] = born[event.block], place
        if now > highest:
            highest, at = now, place
    left_out = {block for block, (first, after) in passing.items() if not first <= at < after}
    return (event for event in stretch if event.block not in left_out)
