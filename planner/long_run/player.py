"""Plays stretches through one allocator, one after the other, each finding what the one before it left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from planner.allocator.caching import CachingAllocator
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Phase, Synchronize, Use
from planner.long_run.patterns import Deed, Sized


class OutOfMemoryError(Exception):
    """The memory does not suffice, also after the cache was released."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        super().__init__(f"out of memory in {phase.value}")


@dataclass(frozen=True, slots=True)
class Peaks:
    """The highest of a stretch; the phase is that of the allocated bytes."""

    allocated_bytes: int = 0
    requested_bytes: int = 0
    phase: Phase = Phase.LOAD

    def higher(self, other: Peaks) -> Peaks:
        """Of both together."""
        first = self if self.allocated_bytes >= other.allocated_bytes else other
        return Peaks(first.allocated_bytes, max(self.requested_bytes, other.requested_bytes), first.phase)


@dataclass(slots=True)
class Player:
    """An allocator and what stands in it: `standing` are the blocks that the next stretch finds, `unused` is a number
    from which on no block has its name."""

    allocator: CachingAllocator
    standing: list[int]
    unused: int
    played: int = 0
    """Events so far, without those that were played as they are."""
    _addresses: dict[int, int] = field(default_factory=dict)

    def play_as_it_is(self, event: Event, phase: Phase) -> None:
        """One event of a trace, its block under its own name."""
        allocator = self.allocator
        match event:
            case Alloc():
                block = allocator.malloc(event.block, event.requested_bytes, event.stream, event.pool)
                if block is None:
                    raise OutOfMemoryError(phase)
                self._addresses[event.block] = block.address
            case Free():
                allocator.free(event.block)
            case Use():
                allocator.use(event.block, event.stream)
            case FreeCompleted():
                allocator.complete_free(event.block)
            case Synchronize():
                allocator.synchronize()
            case EmptyCache():
                allocator.empty_cache()
            case _:
                pass

    def play_trace(self, events: Iterable[Event]) -> None:
        """Events as they are, without saying in which phase the memory runs out."""
        for event in events:
            self.play_as_it_is(event, Phase.LOAD)

    def play(self, stretch: Sized, grew: Callable[[Phase], None] = lambda _: None) -> Peaks:
        """One stretch; `grew` is told the phase whenever more is reserved than ever before. Raises OutOfMemoryError.

        Millions of events pass here.
        """
        allocator, table, made = self.allocator, self.standing[:], len(self.standing)
        malloc, free, sizes, unused = allocator.malloc, allocator.free, stretch.sizes, self.unused
        top, at, requested, reserved = allocator.allocated, -1, allocator.requested, allocator.peak_reserved
        for index, (deed, block, stream, pool) in enumerate(stretch.pattern.steps):
            if deed == Deed.ALLOC:
                got = malloc(unused, sizes[len(table) - made], stream, pool)
                if got is None:
                    raise OutOfMemoryError(stretch.phase_at(index))
                table.append(unused)
                self._addresses[unused] = got.address
                unused += 1
                if allocator.allocated > top:
                    top, at = allocator.allocated, index
                if allocator.requested > requested:
                    requested = allocator.requested
                if allocator.peak_reserved > reserved:
                    reserved = allocator.peak_reserved
                    grew(stretch.phase_at(index))
            elif deed == Deed.FREE:
                free(table[block] if block >= 0 else -1 - block)
            else:
                self._rarer(deed, table[block] if block >= 0 else -1 - block, stream)
        self.unused, self.played = unused, self.played + len(stretch.pattern.steps)
        self.standing = [table[each] if each >= 0 else -1 - each for each in stretch.pattern.left]
        return Peaks(top, requested, stretch.phase_at(max(at, 0)))

    def state(self) -> int | None:
        """All that decides what comes of further stretches, as a number; None where the age of blocks counts."""
        state = self.allocator.state()
        if state is None:
            return None
        blocks, *others = state
        assert isinstance(blocks, list)
        where = tuple(self._addresses.get(each, -1) for each in self.standing)
        self._addresses = {each: self._addresses[each] for each in self.standing if each in self._addresses}
        return hash((tuple(blocks), tuple(others), where))

    def _rarer(self, deed: Deed, block: int, stream: int) -> None:
        if deed == Deed.USE:
            self.allocator.use(block, stream)
        elif deed == Deed.COMPLETE:
            self.allocator.complete_free(block)
        elif deed == Deed.SYNCHRONIZE:
            self.allocator.synchronize()
        else:
            self.allocator.empty_cache()
