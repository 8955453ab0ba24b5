"""What `torch.cuda` says of the memory while a program runs: figures of the modelled allocator, kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Free, FreeCompleted, Synchronize, Use
from planner.paper.recorder import Recorder

_FIGURES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")


class LiveMemory:
    """The allocator of a program at work; every figure is bytes.

    `rules` is asked for when the first memory is taken, as torch reads its settings then. `total_bytes` is the GPU's,
    of which `outside_bytes` are the process's own without the allocator. Nothing ever runs out of memory here: what a
    program would have done after that is not known.
    """

    def __init__(self, recorder: Recorder, rules: Callable[[], Rules], total_bytes: int, outside_bytes: int) -> None:
        self._recorder, self._make_rules = recorder, rules
        self.total_bytes, self._outside_bytes = total_bytes, outside_bytes
        self._allocator: CachingAllocator | None = None
        self._read = 0
        self._allocations = 0
        self._now = dict.fromkeys(_FIGURES, 0)
        self._peak = dict.fromkeys(_FIGURES, 0)
        self._taken = dict.fromkeys(_FIGURES, 0)
        self._ever = dict.fromkeys(_FIGURES, 0)

    def rules(self) -> Rules:
        """Those in force; settles them."""
        return self._settled().rules

    def now(self, figure: str) -> int:
        """`allocated_bytes`, `reserved_bytes`, `active_bytes` or `requested_bytes`, as they are now."""
        self._catch_up()
        return self._now[figure]

    def peak(self, figure: str) -> int:
        """The highest since the last `reset_peaks`."""
        self._catch_up()
        return self._peak[figure]

    def highest(self) -> tuple[int, int]:
        """The highest allocated and reserved bytes ever."""
        self._catch_up()
        return self._ever["allocated_bytes"], self._ever["reserved_bytes"]

    def reset_peaks(self) -> None:
        """From here on peaks are counted anew."""
        self._catch_up()
        self._peak = dict(self._now)

    def free_bytes(self) -> int:
        """What the device would have left, of its total."""
        return max(self.total_bytes - self._outside_bytes - self.now("reserved_bytes"), 0)

    def statistics(self) -> dict[str, Any]:
        """As torch.cuda.memory_stats, of those keys that are not divided by the size of a pool."""
        self._catch_up()
        allocator = self._settled()
        found: dict[str, Any] = {}
        for figure in _FIGURES:
            found[f"{figure}.all.current"] = self._now[figure]
            found[f"{figure}.all.peak"] = self._peak[figure]
            found[f"{figure}.all.allocated"] = self._taken[figure]
            found[f"{figure}.all.freed"] = self._taken[figure] - self._now[figure]
        inactive = self._now["reserved_bytes"] - self._now["active_bytes"]
        found["inactive_split_bytes.all.current"] = found["inactive_split_bytes.all.peak"] = inactive
        found["segment.all.current"] = allocator.segments
        found["allocation.all.allocated"] = self._allocations
        found["num_alloc_retries"] = found["num_ooms"] = 0
        return found

    def _settled(self) -> CachingAllocator:
        if self._allocator is None:
            self._allocator = CachingAllocator(self._make_rules(), Device(None), self.total_bytes)
        return self._allocator

    def _catch_up(self) -> None:
        position = self._recorder.now()
        if position == self._read:
            return
        allocator = self._settled()
        for event in self._recorder.plain_events(self._read):
            match event:
                case Alloc(block, size, stream):
                    allocator.malloc(block, size, stream)
                    self._allocations += 1
                case Free(block):
                    allocator.free(block)
                case Use(block, stream):
                    allocator.use(block, stream)
                case FreeCompleted(block):
                    allocator.complete_free(block)
                case Synchronize():
                    allocator.synchronize()
                case EmptyCache():
                    allocator.empty_cache()
            self._count(allocator)
        self._read = position

    def _count(self, allocator: CachingAllocator) -> None:
        figures = (allocator.allocated, allocator.reserved, allocator.active, allocator.requested)
        for name, figure in zip(_FIGURES, figures, strict=True):
            before = self._now[name]
            if figure == before:
                continue
            self._now[name] = figure
            if figure > before:
                self._taken[name] += figure - before
                self._peak[name] = max(self._peak[name], figure)
                self._ever[name] = max(self._ever[name], figure)
