"""What another setting of the allocator would have done: the same events up to the failure, on the same capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.recording import RecordedFailure, Recording
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.verify import allocations_before, start_allocator
from planner.events import Alloc, Event

SETTINGS: tuple[tuple[str, ...], ...] = (
    ("expandable_segments:True",),
    ("max_split_size_mb:128",),
    ("max_split_size_mb:512",),
    # Without a fraction below 1 the threshold does nothing (CUDACachingAllocator.cpp, set_fraction).
    ("garbage_collection_threshold:0.8", "per_process_memory_fraction:0.99"),
    ("roundup_power2_divisions:4",),
    ("roundup_power2_divisions:8",),
)
"""Those that torch's notes on memory management name against fragmentation."""

_MOST_STEPS = 4096
"""8 GiB beyond what is missing at least, in steps of 2 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One replay. `exact` is False where the recording did not begin empty: what was there is laid out anew."""

    conf: str
    fits: bool
    exact: bool
    reserved_bytes: int
    """The most that was reserved, up to the failure or beyond it."""
    cache_releases: int
    same: bool = False
    """The recorded settings, with the recorded layout of the start."""
    earlier: bool = False
    """Whether it ran out before the request that failed in the recording."""
    missing_bytes: int | None = None
    """Of the recorded settings: with so much more the request would have been served."""


def replay_remedies(
    recording: Recording, failure: RecordedFailure, rules: Rules, conf: str, capacity_bytes: int
) -> tuple[Remedy, ...]:
    """The recorded settings first, as a check of the model: it too must run out there; then each other setting."""
    events = [*recording.events[: failure.event], _failing(recording, failure)]
    anew = [*allocations_before(recording), *events]
    exact = not recording.start
    found = [_as_recorded(recording, events, rules, conf, capacity_bytes)]
    for options in SETTINGS:
        other = _merged(conf, options)
        if other == conf:
            continue
        timeline = replay(anew, Rules.from_conf(other), capacity_bytes)
        found.append(
            Remedy(
                conf=other,
                fits=timeline.out_of_memory is None,
                exact=exact,
                reserved_bytes=timeline.peak_reserved_bytes,
                cache_releases=timeline.cache_releases,
                earlier=timeline.out_of_memory is not None and timeline.out_of_memory.event_index < len(anew) - 1,
            )
        )
    return tuple(found)


def _failing(recording: Recording, failure: RecordedFailure) -> Alloc:
    named = [event.block for event in recording.events if isinstance(event, Alloc)]
    held = [piece.block for segment in recording.start for piece in segment.stretches if piece.block is not None]
    return Alloc(max([*named, *held], default=-1) + 1, failure.size_bytes, failure.stream)


def _merged(conf: str, options: Sequence[str]) -> str:
    """The conf with these options in place of what it says of them."""
    keys = {each.partition(":")[0] for each in options}
    depth, parts, part = 0, [], ""
    for character in "".join(conf.split()) + ",":
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts += [part] if part else []
            part = ""
        else:
            part += character
    if all(option in parts for option in options):
        return conf
    return ",".join([*(each for each in parts if each.partition(":")[0] not in keys), *options])


def _as_recorded(recording: Recording, events: Sequence[Event], rules: Rules, conf: str, capacity_bytes: int) -> Remedy:
    allocator = start_allocator(recording, rules, Device(capacity_bytes))
    failed = next((index for index, event in enumerate(events) if not allocator.take(event)), None)
    last = len(events) - 1
    return Remedy(
        conf=conf,
        fits=failed is None,
        exact=True,
        reserved_bytes=allocator.peak_reserved,
        cache_releases=allocator.cache_releases,
        same=True,
        earlier=failed is not None and failed < last,
        missing_bytes=_missing(allocator, events[last], capacity_bytes) if failed == last else None,
    )


def _missing(allocator: CachingAllocator, request: Event, capacity_bytes: int) -> int | None:
    """How much more the device would have to have, to 2 MiB: tried upwards from what is missing at least."""
    assert isinstance(request, Alloc)
    rules, device = allocator.rules, allocator.device
    free = allocator.reserved - allocator.active if rules.expandable_segments else 0
    step = rules.round_large_bytes
    left = capacity_bytes - device.taken_bytes
    more = max(rules.segment_size(rules.round_size(request.requested_bytes)) - left - free, 0) // step * step
    for _ in range(_MOST_STEPS):
        device.capacity_bytes = capacity_bytes + more
        if allocator.take(request):
            return more
        more += step
    return None
