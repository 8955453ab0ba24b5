"""Replays events through the allocator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.rules import Rules
from planner.allocator.timeline import OutOfMemory, Timeline
from planner.events import Alloc, Event, Free, Use

UsesPass = Literal["late", "at_once"]


def replay(
    events: Sequence[Event],
    rules: Rules = Rules(),  # noqa: B008 - frozen
    capacity_bytes: int | None = None,
    *,
    device_bytes: int | None = None,
    uses_pass: UsesPass = "late",
) -> Timeline:
    """The memory after every event, until the end or until it runs out.

    `capacity_bytes` is all that segments may take (None: no end), `device_bytes` the device's total, from which
    `per_process_memory_fraction` is counted (default: the capacity). When a use on another stream passes depends on
    the GPU: "late" keeps the block until `FreeCompleted` or `Synchronize`, "at_once" is the other extreme.
    Raises ValueError for events that no program could have caused (a block given up twice, say).
    """
    run = Replay(rules, capacity_bytes, device_bytes=device_bytes, uses_pass=uses_pass)
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
        uses_pass: UsesPass = "late",
    ) -> None:
        self.allocator = CachingAllocator(rules, Device(capacity_bytes), device_bytes)
        self.out_of_memory: OutOfMemory | None = None
        self._device_bytes = device_bytes
        self._uses_count = uses_pass == "late"
        self._requested, self._allocated, self._active = array("q"), array("q"), array("q")
        self._reserved, self._segments = array("q"), array("q")
        self._block_bytes: dict[int, int] = {}
        self._block_addresses: dict[int, int] = {}

    def feed(self, events: Iterable[Event]) -> bool:
        """Replays further events; False as soon as the memory has run out, then nothing more is taken."""
        if self.out_of_memory is not None:
            return False
        allocator = self.allocator
        malloc, free, uses_count = allocator.malloc, allocator.free, self._uses_count
        block_bytes, block_addresses = self._block_bytes, self._block_addresses
        add_requested, add_allocated, add_active = self._requested.append, self._allocated.append, self._active.append
        add_reserved, add_segments = self._reserved.append, self._segments.append
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
                elif uses_count or not isinstance(event, Use):
                    allocator.take_other(event)
                add_requested(allocator.requested)
                add_allocated(allocator.allocated)
                add_active(allocator.active)
                add_reserved(allocator.reserved)
                add_segments(allocator.segments)
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
            self._segments,
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
