"""Replays events through the allocator; stretches that repeat until it comes back to a state that it has been in."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.blocks import Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.allocator.timeline import OutOfMemory, Timeline
from planner.events import Alloc, Event, Free, Repeat, copy_stretch, first_unused_block, rename_all


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
        self._reserved, self._segments = array("q"), array("q")
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
                else:
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
    run = _Run(Replay(rules, capacity_bytes, device_bytes=device_bytes), first_unused_block(events))
    written = 0
    for repeat in repeats:
        run.take(events[written : repeat.first])
        run.take_repeated(events[repeat.first : repeat.after], repeat)
        written = repeat.after
    run.take(events[written:])
    timeline = replace(run.replay.timeline(), cache_releases=run.replay.allocator.cache_releases + run.releases)
    return SettledReplay(timeline, tuple(run.events), tuple(run.repeats))


_LONGEST_CYCLE = 64
"""States that are remembered: of a cycle of more, every repetition is replayed."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The allocator after a repetition: its state, where the repetition's heirs are, and how they are called."""

    state: tuple[object, ...]
    addresses: tuple[int | None, ...]
    names: tuple[int, ...]
    cache_releases: int

    def is_like(self, other: _Seen) -> bool:
        return self.addresses == other.addresses and self.state == other.state


class _Run:
    def __init__(self, replay: Replay, unused: int) -> None:
        self.replay = replay
        self.events: list[Event] = []
        self.repeats: list[Repeat] = []
        self.releases = 0
        """Releases of the cache in repetitions that are left away."""
        self._unused = unused
        self._now: dict[int, int] = {}
        """How blocks are called that stand for others since a repetition."""

    def take(self, events: Sequence[Event]) -> None:
        renamed = list(rename_all(events, self._now))
        self.replay.feed(renamed)
        self.events += renamed

    def take_repeated(self, stretch: Sequence[Event], repeat: Repeat) -> None:
        now, names, own = self._now, self._now, dict[int, int]()
        past = [self._look(repeat, names, own, before=True)]
        self.take(stretch)
        done, left = 0, repeat.times
        while left and self.replay.out_of_memory is None:
            past = [*past[-_LONGEST_CYCLE:], self._look(repeat, names, own)]
            cycle = _cycle_of(past)
            if cycle and left >= cycle:
                times, left = divmod(left, cycle)
                self._leave_away(len(stretch) * cycle, times, cycle * repeat.iterations, past[-1 - cycle :])
                done += times * cycle
                past = []
                continue
            names = {**now, **repeat.pass_on(names, own)}
            done, left = done + 1, left - 1
            copied, own = copy_stretch(stretch, self._unused, done * repeat.iterations, names)
            self._unused += len(own)
            self._now = {}
            self.take(copied)
        self._now = {**now, **repeat.left_names(names, own)}

    def _look(
        self, repeat: Repeat, names: Mapping[int, int], own: Mapping[int, int], *, before: bool = False
    ) -> _Seen | None:
        """None where the age of blocks counts, too."""
        allocator = self.replay.allocator
        state = allocator.state()
        if state is None:
            return None
        called = [names.get(block, block) for block, _ in repeat.heirs]
        if not before:
            called = [own.get(left, names.get(left, left)) for _, left in repeat.heirs]
        addresses = tuple(map(self.replay.address_of, called))
        return _Seen(state, addresses, tuple(called), allocator.cache_releases)

    def _leave_away(self, length: int, times: int, iterations: int, cycle: Sequence[_Seen | None]) -> None:
        first, last = cycle[0], cycle[-1]
        assert first is not None
        assert last is not None
        heirs = tuple(zip(first.names, last.names, strict=True))
        self.repeats.append(Repeat(len(self.events) - length, len(self.events), times, iterations, heirs))
        self.releases += times * (last.cache_releases - first.cache_releases)


def _cycle_of(past: Sequence[_Seen | None]) -> int:
    """After how many repetitions the latest state was there before; 0 if it was not."""
    latest = past[-1] if past else None
    if latest is None:
        return 0
    for cycle in range(1, len(past)):
        before = past[-1 - cycle]
        if before is not None and latest.is_like(before):
            return cycle
    return 0
