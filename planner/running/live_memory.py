"""What `torch.cuda` says of the memory while a program runs: figures of the modelled allocator, kept up to date."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.allocator.caching import CachingAllocator
from planner.allocator.device import Device
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.paper.recorder import Recorder
from planner.running.memory_snapshot import snapshot_of

_POOLS = ("all", "small_pool", "large_pool")
_FOLLOWED = (
    "allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes",
)  # fmt: skip
_INACTIVE = ("inactive_split", "inactive_split_bytes")


@dataclass(slots=True)
class _Statistic:
    """As c10/core/CachingDeviceAllocator.h, Stat."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def change(self, by: int) -> None:
        self.current += by
        self.peak = max(self.peak, self.current)
        if by > 0:
            self.allocated += by
        else:
            self.freed -= by


class LiveMemory:
    """The allocator of a program at work; every figure is bytes unless its name says otherwise.

    `conf` is asked for when the first memory is taken, as torch reads its settings then. `total_bytes` is the GPU's,
    of which `outside_bytes` are the process's own without the allocator. Nothing ever runs out of memory here: what a
    program would have done after that is not known.
    """

    def __init__(self, recorder: Recorder, conf: Callable[[], str], total_bytes: int, outside_bytes: int) -> None:
        self._recorder, self._ask_conf = recorder, conf
        self.total_bytes, self._outside_bytes = total_bytes, outside_bytes
        self.conf = ""
        """Once it is settled."""
        self.fraction = 1.0
        """Of the device, as the program has allowed itself at last."""
        self._allocator: CachingAllocator | None = None
        self._read = 0
        self._sizes: dict[int, tuple[bool, int]] = {}
        self._statistics = {(name, pool): _Statistic() for name in _FOLLOWED for pool in _POOLS}
        self._highest_inactive: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._ever = {"allocated_bytes": 0, "reserved_bytes": 0}
        self._lately = dict(self._ever)
        self._resets = 0

    def settle(self, conf: str | None = None) -> CachingAllocator:
        """The settings are read, if they were not before; `conf` stands for what the environment says.

        Raises AllocatorConfError for settings that torch refuses or that are not modelled.
        """
        if self._allocator is None:
            self.conf = self._ask_conf() if conf is None else conf
            self._allocator = CachingAllocator(Rules.from_conf(self.conf), Device(None), self.total_bytes)
        return self._allocator

    def highest(self) -> tuple[int, int]:
        """The highest allocated and reserved bytes ever."""
        self._catch_up()
        return self._ever["allocated_bytes"], self._ever["reserved_bytes"]

    def highest_since(self) -> tuple[int, int]:
        """The highest allocated and reserved bytes since this was asked last."""
        self._catch_up()
        found = self._lately["allocated_bytes"], self._lately["reserved_bytes"]
        self._lately = {name: self._statistics[name, "all"].current for name in self._ever}
        return found

    def counted(self) -> dict[str, int]:
        """The peaks in bytes that the program would print now, since it last reset them, and how often it did."""
        self._catch_up()
        peaks = {f"max_{name}": self._statistics[name, "all"].peak for name in self._ever}
        return {**peaks, "resets": self._resets}

    def free_bytes(self) -> int:
        """What the device would have left, of its total."""
        self._catch_up()
        return max(self.total_bytes - self._outside_bytes - self._statistics["reserved_bytes", "all"].current, 0)

    def reset_peaks(self) -> None:
        """From here on peaks are counted anew."""
        self._catch_up()
        self._resets += 1
        for each in self._statistics.values():
            each.peak = each.current
        self._highest_inactive.clear()

    def reset_accumulated(self) -> None:
        """From here on what is taken and given back is counted anew."""
        self._catch_up()
        for key, each in self._statistics.items():
            self._statistics[key] = replace(each, allocated=0, freed=0)

    def statistics(self) -> dict[str, Any]:
        """What the binding behind torch.cuda.memory_stats returns (torch 2.13, torch/csrc/cuda/Module.cpp).

        Inactive parts of segments are looked up when they are asked for: their peak is the highest of these.
        """
        self._catch_up()
        found: dict[str, Any] = dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams"), 0)
        found["max_split_size"] = self.settle().rules.max_split_bytes or -1
        found["num_device_alloc"] = self._statistics["segment", "all"].allocated
        found["num_device_free"] = self._statistics["segment", "all"].freed
        for name in _FOLLOWED:
            found[name] = {pool: _plain(self._statistics[name, pool]) for pool in _POOLS}
        found.update(self._inactive())
        found["oversize_allocations"] = _plain(_Statistic())
        found["oversize_segments"] = _plain(_Statistic())
        return found

    def snapshot(self, devices: int) -> dict[str, Any]:
        """What the binding behind torch.cuda.memory_snapshot returns."""
        self._catch_up()
        return snapshot_of(self.settle(), devices)

    def _inactive(self) -> dict[str, Any]:
        now: defaultdict[tuple[str, str], int] = defaultdict(int)
        for small in (True, False):
            for size in self._free_parts(small=small):
                for pool in ("all", _pool(small=small)):
                    now["inactive_split", pool] += 1
                    now["inactive_split_bytes", pool] += size
        for key, value in now.items():
            self._highest_inactive[key] = max(self._highest_inactive[key], value)
        return {
            name: {pool: _plain(_Statistic(now[name, pool], self._highest_inactive[name, pool])) for pool in _POOLS}
            for name in _INACTIVE
        }

    def _free_parts(self, *, small: bool) -> Iterator[int]:
        """Sizes of free blocks in segments of which other parts are used."""
        for pool in self.settle().pools(small=small):
            yield from (block.size for block in pool.free_blocks() if not block.alone)

    def _catch_up(self) -> None:
        position = self._recorder.now()
        if position == self._read:
            return
        allocator = self.settle()
        for event in self._recorder.plain_events(self._read):
            before = (
                allocator.segments,
                allocator.allocated,
                allocator.reserved,
                allocator.active,
                allocator.requested,
            )
            small, blocks = self._feed(allocator, event)
            self._count(allocator, before, small=small, blocks=blocks)
        self._read = position

    def _feed(self, allocator: CachingAllocator, event: Event) -> tuple[bool | None, int]:
        """To which pool it belongs, if to one, and by how much the number of blocks changes."""
        match event:
            case Alloc(block, size, stream, _, pool):
                allocator.malloc(block, size, stream, pool)
                small = allocator.rules.round_size(size) <= allocator.rules.small_bytes
                self._sizes[block] = small, size
                return small, 1
            case Free(block):
                allocator.free(block)
                return self._sizes.pop(block)[0], -1
            case Use(block, stream):
                allocator.use(block, stream)
            case FreeCompleted(block):
                allocator.complete_free(block)
            case Synchronize():
                allocator.synchronize()
            case EmptyCache():
                self._release(allocator)
        return None, 0

    def _release(self, allocator: CachingAllocator) -> None:
        """The cache is given back: of the small pool what lies in whole segments, the rest is of the large one."""
        whole = [block.size for pool in allocator.pools(small=True) for block in pool.free_blocks() if block.alone]
        reserved, segments = allocator.reserved, allocator.segments
        allocator.empty_cache()
        for name, small, rest in (
            ("reserved_bytes", sum(whole), reserved - allocator.reserved - sum(whole)),
            ("segment", len(whole), segments - allocator.segments - len(whole)),
        ):
            self._statistics[name, "small_pool"].change(-small)
            self._statistics[name, "large_pool"].change(-rest)

    def _count(self, allocator: CachingAllocator, before: tuple[int, ...], *, small: bool | None, blocks: int) -> None:
        now = (allocator.segments, allocator.allocated, allocator.reserved, allocator.active, allocator.requested)
        names = ("segment", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        changes = [(name, after - was) for name, was, after in zip(names, before, now, strict=True) if after != was]
        if blocks:
            changes += [("allocation", blocks), ("active", blocks)]
        for name, change in changes:
            self._statistics[name, "all"].change(change)
            if small is not None:
                self._statistics[name, _pool(small=small)].change(change)
        for name in self._ever:
            current = self._statistics[name, "all"].current
            self._ever[name] = max(self._ever[name], current)
            self._lately[name] = max(self._lately[name], current)


def _pool(*, small: bool) -> str:
    return "small_pool" if small else "large_pool"


def _plain(statistic: _Statistic) -> dict[str, int]:
    return {name: getattr(statistic, name) for name in ("current", "peak", "allocated", "freed")}
