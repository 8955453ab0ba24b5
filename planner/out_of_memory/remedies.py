"""What another setting of the allocator would have done: the same events up to the failure, on the same capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.allocator.device import Device
from planner.allocator.recording import RecordedFailure, Recording
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.verify import allocations_before, start_allocator
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Use

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
    fits = True
    for event in events:
        if isinstance(event, Alloc):
            fits = allocator.malloc(event.block, event.requested_bytes, event.stream) is not None
            if not fits:
                break
        elif isinstance(event, Free):
            allocator.free(event.block)
        elif isinstance(event, Use):
            allocator.use(event.block, event.stream)
        elif isinstance(event, FreeCompleted):
            allocator.complete_free(event.block)
        elif isinstance(event, EmptyCache):
            allocator.empty_cache()
    return Remedy(
        conf=conf,
        fits=fits,
        exact=True,
        reserved_bytes=allocator.peak_reserved,
        cache_releases=allocator.cache_releases,
        same=True,
    )
