"""Replays events through the allocator; stretches that repeat until it comes back to a state that it has been in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.allocator.timeline import OutOfMemory, Timeline
from planner.events import Alloc, Event, Free, Repeat
from planner.repeat_writer import Boundary, RepeatWriter


def replay(
    events: Sequence[Event],
    rules: Rules = Rules(),  # noqa: B008 - frozen
    capacity_bytes: int | None = None,
    *,
    device_bytes: int | None = None,
) -> Timeline:
    """The memory after every event, until the end or until it runs out.

    `capacity_bytes` is all that segments may take (None: no end), `device_bytes` the device's total, from which
    `per_process_memory_fraction` is counted (default: the capacity). A block that another stream uses stays until
    `FreeCompleted`, `Synchronize` or `EmptyCache`; when the GPU has passed it is known to planner.timing.
    Raises ValueError for events that no program could have caused (a block given up twice, say).
    """
    run = Replay(rules, capacity_bytes, device_bytes=device_bytes)
    run.feed(events)
    return run.timeline()


class Replay:
    """A replay that is fed piece by piece, so that a long trace never has to be in memory at once."""

    def __init__(
        self,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        capacity_bytes: int | None = None,
        *,
        device_bytes: int | None = None,
    ) -> None:
        self.allocator = CachingAllocator(rules, Device(capacity_bytes), device_bytes)
        self.out_of_memory: OutOfMemory | None = None
        self._device_bytes = device_bytes
        self._requested, self._allocated, self._active = array("q"), array("q"), array("q")
        self._reserved = array("q")
        self._block_bytes: dict[int, int] = {}
        self._block_addresses: dict[int, int] = {}

    def feed(self, events: Iterable[Event]) -> bool:
        """Replays further events; False as soon as the memory has run out, then nothing more is taken."""
        if self.out_of_memory is not None:
            return False
        allocator = self.allocator
        malloc, free = allocator.malloc, allocator.free
        block_bytes, block_addresses = self._block_bytes, self._block_addresses
        add_requested, add_allocated, add_active = self._requested.append, self._allocated.append, self._active.append
        add_reserved = self._reserved.append
        event: Event | None = None
        try:
            for event in events:
                if isinstance(event, Alloc):
                    name = event.block
                    if name in block_bytes:
                        raise ValueError(f"event {len(self._reserved)}: block {name} is allocated twice")
                    block = malloc(name, event.requested_bytes, event.stream, event.pool)
                    if block is None:
                        self._stop(event)
                    else:
                        block_bytes[name] = block.size
                        block_addresses[name] = block.address
                elif isinstance(event, Free):
                    free(event.block)
                else:
                    allocator.take(event)
                add_requested(allocator.requested)
                add_allocated(allocator.allocated)
                add_active(allocator.active)
                add_reserved(allocator.reserved)
                if self.out_of_memory is not None:
                    return False
        except KeyError as missing:
            raise ValueError(f"event {len(self._reserved)}: {event} names a block that is not alive") from missing
        return True

    def address_of(self, block: int) -> int | None:
        """Where a block is, or was; None for one that never was."""
        return self._block_addresses.get(block)

    def timeline(self) -> Timeline:
        """What was replayed so far."""
        return Timeline(
            self._requested,
            self._allocated,
            self._active,
            self._reserved,
            block_bytes=self._block_bytes,
            block_addresses=self._block_addresses,
            cache_releases=self.allocator.cache_releases,
            out_of_memory=self.out_of_memory,
            highest_reserved_bytes=self.allocator.peak_reserved,
        )

    def _stop(self, event: Alloc) -> None:
        allocator, device = self.allocator, self.allocator.device
        capacity = device.capacity_bytes
        rules = allocator.rules
        total = self._device_bytes if self._device_bytes is not None else capacity
        self.out_of_memory = OutOfMemory(
            event_index=len(self._reserved),
            block=event.block,
            requested_bytes=event.requested_bytes,
            allocated_bytes=allocator.allocated,
            reserved_bytes=allocator.reserved,
            capacity_bytes=total or 0,
            tried_bytes=rules.segment_size(rules.round_size(event.requested_bytes)),
            free_bytes=0 if capacity is None else capacity - device.taken_bytes,
            allowed_bytes=allocator.allowed,
        )


@dataclass(frozen=True, slots=True)
class SettledReplay:
    """A replay, the events that it took, and what repeats of those without being replayed."""

    timeline: Timeline
    events: tuple[Event, ...]
    repeats: tuple[Repeat, ...]


def replay_until_settled(
    events: tuple[Event, ...],
    repeats: Sequence[Repeat],
    rules: Rules = Rules(),  # noqa: B008 - frozen
    capacity_bytes: int | None = None,
    *,
    device_bytes: int | None = None,
) -> SettledReplay:
    """As :func:`planner.allocator.replay.replay` of everything written out; repetitions that change nothing are left
    away.

    Raises ValueError for events that no program could have caused.
    """
    if not repeats:
        timeline = replay(events, rules, capacity_bytes, device_bytes=device_bytes)
        return SettledReplay(timeline, events, ())
    writer = _ReplayWriter(Replay(rules, capacity_bytes, device_bytes=device_bytes), events)
    writer.write(events, repeats)
    releases = writer.replay.allocator.cache_releases + writer.counted_unwritten
    timeline = replace(writer.replay.timeline(), cache_releases=releases)
    return SettledReplay(timeline, tuple(writer.events), tuple(writer.repeats))


class _ReplayWriter(RepeatWriter):
    """Replays what it takes."""

    def __init__(self, replay: Replay, events: Sequence[Event]) -> None:
        super().__init__(events)
        self.replay = replay

    def take(self, events: Iterable[Event]) -> None:
        """Replays further events."""
        taken = list(events)
        self.replay.feed(taken)
        self.events += taken

    def look(self, heirs: tuple[int, ...]) -> Boundary | None:
        """The allocator, and where the heirs are; None where the age of blocks counts, too."""
        allocator = self.replay.allocator
        if (state := allocator.state()) is None:
            return None
        return Boundary((state, tuple(map(self.replay.address_of, heirs))), heirs, allocator.cache_releases)

    def is_over(self) -> bool:
        """Whether the memory has run out."""
        return self.replay.out_of_memory is not None
