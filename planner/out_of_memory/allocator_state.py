"""What the allocator held when a request failed: its blocks, by size, by pool, and by the lines that made them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.recording import Recording
from planner.events import Alloc, Free, Phase
from planner.report.recorded_frames import frames_of, module_line, own_line, phase_of

_MOST_HOLDERS = 12
_BEFORE = "held before the recording began"
_WITHOUT_FRAMES = "no frames were recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Blocks that one line of the program allocated and that were still held."""

    line: str
    module: str
    phase: Phase | None
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorState:
    """Bytes in blocks and between them. `cached` is what a release of the cache would give back."""

    requested_bytes: int
    allocated_bytes: int
    waiting_bytes: int
    """Given up by the program, in use on another stream."""
    reserved_bytes: int
    inactive_split_bytes: int
    """Free beside used blocks of the same segment: the device cannot have it back."""
    cached_bytes: int
    largest_free_bytes: int
    """The largest free block of the pool in which the request looked."""
    pool_free_bytes: int
    """All free blocks of that pool."""
    holders: tuple[Holding, ...]
    others_bytes: int
    """Of holders that are not listed."""


@dataclass(frozen=True, slots=True)
class _Maker:
    line: str
    module: str
    phase: Phase | None


class BlockMakers:
    """Which line made each block of a recording, as far as it has frames; where it has none, how large the block is."""

    def __init__(self, recording: Recording, trace: Sequence[Mapping[str, Any]], segments: Iterable[Any]) -> None:
        self.traced = bool(trace)
        """Whether a history was recorded at all: else nothing is known of when a block was made."""
        freed = {event.block for event in recording.events if isinstance(event, Free)}
        at = _frames_by_address(segments, recording.device)
        self._frames: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._before: set[int] = set()
        for segment in recording.start:
            address = segment.address
            for piece in segment.stretches:
                if piece.block is not None:
                    self._before.add(piece.block)
                    # A block that was given up later may have had a follower at its address.
                    self._frames[piece.block] = [] if piece.block in freed else at.get(address, [])
                address += piece.size
        born = (event.block for event in recording.events if isinstance(event, Alloc))
        self._frames.update(zip(born, (frames_of(each) for each in trace if each["action"] == "alloc"), strict=True))
        self._framed = any(self._frames.values())

    def maker(self, block: int, size: int) -> _Maker:
        frames = self._frames.get(block, [])
        line = own_line(frames)
        if line:
            return _Maker(line, module_line(frames), phase_of(frames))
        if self.traced and block in self._before:
            return _Maker(_BEFORE, "", None)
        return _Maker(_WITHOUT_FRAMES if self._framed else f"{size:,} bytes each, {_WITHOUT_FRAMES}", "", None)


def state_of(allocator: CachingAllocator, makers: BlockMakers, size_bytes: int | None, stream: int) -> AllocatorState:
    """The state now; `size_bytes` and `stream` are of the request that failed, None where it is not known."""
    small = size_bytes is not None and size_bytes <= allocator.rules.small_bytes
    inactive = cached = largest = pooled = 0
    for block in allocator.blocks():
        if not block.free or not block.mapped:
            continue
        used = any(each is not None and each.mapped and not each.free for each in (block.before, block.after))
        inactive += block.size if used else 0
        cached += 0 if used else block.size
        if block.pool.small is small and block.pool.stream == stream and not block.pool.private:
            largest, pooled = max(largest, block.size), pooled + block.size
    holders = _holders(allocator, makers)
    return AllocatorState(
        requested_bytes=allocator.requested,
        allocated_bytes=allocator.allocated,
        waiting_bytes=allocator.active - allocator.allocated,
        reserved_bytes=allocator.reserved,
        inactive_split_bytes=inactive,
        cached_bytes=cached,
        largest_free_bytes=largest,
        pool_free_bytes=pooled,
        holders=tuple(holders[:_MOST_HOLDERS]),
        others_bytes=sum(each.bytes for each in holders[_MOST_HOLDERS:]),
    )


def _holders(allocator: CachingAllocator, makers: BlockMakers) -> list[Holding]:
    sums: dict[_Maker, list[int]] = defaultdict(lambda: [0, 0])
    for name, size in allocator.held():
        total = sums[makers.maker(name, size)]
        total[0] += size
        total[1] += 1
    found = [
        Holding(line=maker.line, module=maker.module, phase=maker.phase, bytes=size, count=count)
        for maker, (size, count) in sums.items()
    ]
    return sorted(found, key=lambda each: (-each.bytes, each.line, each.module))


def _frames_by_address(segments: Iterable[Any], device: int) -> dict[int, list[Mapping[str, Any]]]:
    """Of the blocks that were in use at the end of the recording."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        if segment["device"] != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                found[address] = frames_of(block)
            address += block["size"]
    return found
