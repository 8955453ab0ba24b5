"""Answers a program about its GPUs and their memory: torch.cuda's statistics and NVML."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from planner.allocator.blocks import Block, Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.errors import TraceError
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.paper import work_records
from planner.paper.recorder import Recorder
from planner.step_work import Kernel
from planner.timing.gpu_clock import Prices
from planner.timing.pending_frees import PendingFrees
from planner.tracing.program.assumptions import About, Assumptions, current_place
from planner.units import MIB

_PROBE = -1
"""A block that no event names."""
_POOLS = ("all", "small_pool", "large_pool")
_FOLLOWED = (
    "allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes",
)  # fmt: skip
_INACTIVE = ("inactive_split", "inactive_split_bytes")
_MEASURED = ("segment", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_measure = attrgetter("segments", "allocated", "reserved", "active", "requested")


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
    of which `outside_bytes` are the process's own without the allocator. `prices` are those of
    kernels on the GPU. Nothing ever runs out of memory here: what a program would have done after that is not known.
    """

    def __init__(
        self,
        recorder: Recorder,
        conf: Callable[[], str],
        total_bytes: int,
        outside_bytes: int,
        prices: Callable[[Sequence[Kernel]], Prices],
    ) -> None:
        self._recorder, self._ask_conf, self._price = recorder, conf, prices
        self._prices = Prices([], [])
        self._frees = PendingFrees(self._prices)
        self.total_bytes, self._outside_bytes = total_bytes, outside_bytes
        self.conf = ""
        self.fraction = 1.0
        """Of the device, as the program has allowed itself at last."""
        self._allocator: CachingAllocator | None = None
        self._crowded: CachingAllocator | None = None
        """The same on a GPU that may be full, as long as nothing has failed there."""
        self._read = self._launched = self._priced = 0
        self._pools: dict[int, str] = {}
        self._statistics = {(name, pool): _Statistic() for name in _FOLLOWED for pool in _POOLS}
        self._highest_inactive: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._ever = {"allocated_bytes": 0, "reserved_bytes": 0}
        self._lately = dict(self._ever)
        self._resets = 0
        self.when_read: Callable[[], None] = lambda: None

    def settle(self, conf: str | None = None) -> CachingAllocator:
        """The settings are read, if they were not before; `conf` stands for what the environment says.

        Raises AllocatorConfError for settings that torch refuses or that are not modelled.
        """
        if self._allocator is None:
            self.conf = self._ask_conf() if conf is None else conf
            rules = Rules.from_conf(self.conf)
            self._allocator = CachingAllocator(rules, Device(None), self.total_bytes)
            self._crowded = CachingAllocator(rules, Device(self.total_bytes - self._outside_bytes), self.total_bytes)
        return self._allocator

    def highest(self) -> tuple[int, int]:
        """The highest allocated and reserved bytes ever."""
        self._catch_up()
        return self._ever["allocated_bytes"], self._ever["reserved_bytes"]

    def allocated_now(self) -> int:
        """The bytes that are allocated at this moment."""
        self._catch_up()
        return self._statistics["allocated_bytes", "all"].current

    def highest_since(self) -> tuple[int, int]:
        """The highest allocated and reserved bytes since this was asked last."""
        self._catch_up()
        highest = self._lately["allocated_bytes"], self._lately["reserved_bytes"]
        self._lately = {name: self._statistics[name, "all"].current for name in self._ever}
        return highest

    def counted(self) -> dict[str, int]:
        """The peaks in bytes that the program would print now, since it last reset them, and how often it did; nothing
        where nobody has asked for a figure of its memory so far."""
        if not self._read:
            return {}
        self._catch_up()
        peaks = {f"max_{name}": self._statistics[name, "all"].peak for name in self._ever}
        return {**peaks, "resets": self._resets}

    def free_bytes(self) -> int:
        """What the device would have left, of its total."""
        self._catch_up()
        return max(self.total_bytes - self._outside_bytes - self._statistics["reserved_bytes", "all"].current, 0)

    def has_room(self, size: int) -> bool:
        """Whether the allocator of the GPU would find so many bytes more now, if need be without its cache."""
        self._catch_up()
        if self._crowded is None:
            return True
        if self._crowded.malloc(_PROBE, size, 0) is None:
            return False
        self._crowded.free(_PROBE)
        return True

    def reset_peaks(self) -> None:
        """From here on peaks are counted anew."""
        self._catch_up()
        self._resets += 1
        for statistic in self._statistics.values():
            statistic.peak = statistic.current
        self._highest_inactive.clear()

    def reset_accumulated(self) -> None:
        """From here on what is taken and given back is counted anew."""
        self._catch_up()
        for statistic in self._statistics.values():
            statistic.allocated = statistic.freed = 0

    def statistics(self) -> dict[str, Any]:
        """What the binding behind torch.cuda.memory_stats returns (torch 2.13, torch/csrc/cuda/Module.cpp).

        Inactive parts of segments are looked up when they are asked for: their peak is the highest of these.
        """
        self._catch_up()
        self.when_read()
        allocator, segments = self.settle(), self._statistics["segment", "all"]
        inactive: defaultdict[tuple[str, str], int] = defaultdict(int)
        for kind, small in (("small_pool", True), ("large_pool", False)):
            # Free blocks in segments of which other parts are used.
            sizes = [
                block.size for pool in allocator.pools(small=small) for block in pool.free_blocks() if not block.alone
            ]
            for pool in ("all", kind):
                inactive["inactive_split", pool] += len(sizes)
                inactive["inactive_split_bytes", pool] += sum(sizes)
        for key, value in inactive.items():
            self._highest_inactive[key] = max(self._highest_inactive[key], value)
        return {
            **dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams"), 0),
            "max_split_size": allocator.rules.max_split_bytes or -1,
            "num_device_alloc": segments.allocated,
            "num_device_free": segments.freed,
            **{name: {pool: asdict(self._statistics[name, pool]) for pool in _POOLS} for name in _FOLLOWED},
            **{
                name: {
                    pool: asdict(_Statistic(inactive[name, pool], self._highest_inactive[name, pool]))
                    for pool in _POOLS
                }
                for name in _INACTIVE
            },
            "oversize_allocations": asdict(_Statistic()),
            "oversize_segments": asdict(_Statistic()),
        }

    def snapshot(self, devices: int) -> dict[str, Any]:
        """What the binding behind torch.cuda.memory_snapshot returns (torch 2.13, torch/csrc/cuda/Module.cpp,
        THCPModule_memorySnapshot), without stacks and without a history of events."""
        self._catch_up()
        allocator = self.settle()
        waiting = {id(block) for block in allocator.waiting()}
        # Of an expandable segment every mapped stretch is one, as torch has it.
        stretches = groupby(allocator.blocks(), lambda block: (block.segment.address, block.mapped))
        return {
            "segments": [_segment(list(blocks), waiting) for (_, mapped), blocks in stretches if mapped],
            "device_traces": [[] for _ in range(devices)],
            "allocator_settings": {"expandable_segments": allocator.rules.expandable_segments},
            "external_annotations": [],
        }

    def _catch_up(self) -> None:
        position = self._recorder.now()
        if position == self._read:
            return
        allocator = self.settle()
        happened, self._launched = self._recorder.timed_events(self._read, self._launched)
        kernels, self._priced = work_records.read_kernels(self._priced)
        self._prices.extend(self._price(kernels))
        told: list[Event] = []
        self._frees.take(happened, told)
        for event in told:
            if self._crowded is not None and not self._crowded.take(event):
                self._crowded = None
            before = _measure(allocator)
            pool, blocks = self._feed(allocator, event)
            changes = [now - was for was, now in zip(before, _measure(allocator), strict=True)]
            for name, change in (*zip(_MEASURED, changes, strict=True), ("allocation", blocks), ("active", blocks)):
                if change:
                    self._statistics[name, "all"].change(change)
                    if pool:
                        self._statistics[name, pool].change(change)
            for name in self._ever:
                current = self._statistics[name, "all"].current
                self._ever[name] = max(self._ever[name], current)
                self._lately[name] = max(self._lately[name], current)
        self._read = position

    def _feed(self, allocator: CachingAllocator, event: Event) -> tuple[str, int]:
        """To which pool it belongs, if to one, and by how much the number of blocks changes."""
        match event:
            case Alloc(block, size, stream, _, pool):
                allocator.malloc(block, size, stream, pool)
                is_small = allocator.rules.round_size(size) <= allocator.rules.small_bytes
                self._pools[block] = "small_pool" if is_small else "large_pool"
                return self._pools[block], 1
            case Free(block):
                allocator.free(block)
                return self._pools.pop(block), -1
            case Use(block, stream):
                allocator.use(block, stream)
            case FreeCompleted(block):
                allocator.complete_free(block)
            case Synchronize():
                allocator.synchronize()
            case EmptyCache():
                self._empty_cache(allocator)
        return "", 0

    def _empty_cache(self, allocator: CachingAllocator) -> None:
        """Of the small pool what lies in whole segments is given back, the rest is of the large one."""
        whole = [block.size for pool in allocator.pools(small=True) for block in pool.free_blocks() if block.alone]
        reserved, segments = allocator.reserved, allocator.segments
        allocator.empty_cache()
        for name, small, released in (
            ("reserved_bytes", sum(whole), reserved - allocator.reserved),
            ("segment", len(whole), segments - allocator.segments),
        ):
            self._statistics[name, "small_pool"].change(-small)
            self._statistics[name, "large_pool"].change(small - released)


def _segment(blocks: list[Block], waiting: set[int]) -> dict[str, Any]:
    first = blocks[0]
    used = [block for block in blocks if not block.free]
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in used if id(block) not in waiting),
        "active_size": sum(block.size for block in used),
        "requested_size": sum(block.requested for block in used),
        "stream": first.pool.stream,
        "segment_type": "small" if first.pool.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": 0 if block.free else block.requested,
                "state": "inactive" if block.free
                else "active_awaiting_free" if id(block) in waiting else "active_allocated",
                "frames": [],
            }
            for block in blocks
        ],
    }  # fmt: skip


# Names of functions and constants are those of nvidia-ml-py 13 (pynvml.py). Memory is that of the modelled allocator
# with what the process holds outside of it; what only a GPU at work has (utilisation, temperature, power, clocks) is
# answered with 0, and every such answer is in the report. Everything else is refused by name.
_CONSTANTS = {
    "NVML_SUCCESS": 0, "NVML_ERROR_UNINITIALIZED": 1, "NVML_ERROR_INVALID_ARGUMENT": 2, "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_GRAPHICS": 0, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2,
}  # fmt: skip
_DRIVER = "580.65.06"
"""The first driver of CUDA 13.0 (its release notes)."""


class NVMLError(Exception):
    """As pynvml raises it."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class ManagementLibrary:
    """Of one node with `gpus` GPUs, of which the current one's memory is known."""

    def __init__(self, product: str, gpus: int, memory: LiveMemory, assumptions: Assumptions) -> None:
        self._product, self._gpus, self._memory, self._assumptions = product, gpus, memory, assumptions

    def used_bytes(self, index: int) -> int:
        """As the device reports it; other GPUs of the node are assumed to be as full as this one."""
        if index != torch.cuda.current_device():
            self._assume("memory of another GPU of the node is assumed to be as much as of this one")
        return self._memory.total_bytes - self._memory.free_bytes()

    def idle(self, what: str) -> int:
        """The answer to a question that only a GPU at work could answer."""
        self._assume(f"{what} of the GPU was asked for and answered with 0")
        return 0

    def list_processes(self, index: int) -> str:
        """`torch.cuda.list_gpu_processes` (torch 2.13, torch/cuda/memory.py): of this process alone."""
        used = self.used_bytes(index) / MIB
        return f"GPU:{index}\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"

    def _assume(self, sentence: str) -> None:
        self._assumptions.add(About.DEVICE, sentence, current_place())

    def module(self) -> ModuleType:
        """What `import pynvml` finds; devices are named by their numbers."""

        def handle(index: int) -> int:
            if not 0 <= int(index) < self._gpus:
                raise NVMLError(_CONSTANTS["NVML_ERROR_INVALID_ARGUMENT"])
            return int(index)

        def memory_info(handle: int, version: Any = None) -> SimpleNamespace:
            total, used = self._memory.total_bytes, self.used_bytes(handle)
            of_version = {"version": version, "reserved": 0} if version else {}
            return SimpleNamespace(total=total, used=used, free=total - used, **of_version)

        def processes(handle: int) -> list[SimpleNamespace]:
            used = self.used_bytes(handle)
            return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=used, gpuInstanceId=0xFFFFFFFF)]

        def utilization(_handle: int) -> SimpleNamespace:
            return SimpleNamespace(gpu=self.idle("the utilization"), memory=0)

        pynvml = _Module("pynvml")
        nothing: Callable[..., None] = lambda *_arguments: None  # noqa: E731
        vars(pynvml).update(
            _CONSTANTS,
            NVMLError=NVMLError,
            __version__="13.0.0",
            nvmlInit=nothing,
            nvmlInitWithFlags=nothing,
            nvmlShutdown=nothing,
            nvmlSystemGetDriverVersion=lambda: _DRIVER,
            nvmlSystemGetCudaDriverVersion=lambda: 13000,
            nvmlSystemGetCudaDriverVersion_v2=lambda: 13000,
            nvmlDeviceGetCount=lambda: self._gpus,
            nvmlDeviceGetHandleByIndex=handle,
            nvmlDeviceGetIndex=lambda handle: handle,
            nvmlDeviceGetName=lambda _handle: self._product,
            nvmlDeviceGetUUID=lambda handle: f"GPU-paper-{handle}",
            nvmlDeviceGetMemoryInfo=memory_info,
            nvmlDeviceGetCudaComputeCapability=lambda _handle: torch.cuda.get_device_capability(),
            nvmlDeviceGetComputeRunningProcesses=processes,
            nvmlDeviceGetGraphicsRunningProcesses=lambda _handle: [],
            nvmlDeviceGetUtilizationRates=utilization,
            nvmlDeviceGetTemperature=lambda *_a: self.idle("the temperature"),
            nvmlDeviceGetPowerUsage=lambda _handle: self.idle("the power"),
            nvmlDeviceGetEnforcedPowerLimit=lambda _handle: self.idle("the power limit"),
            nvmlDeviceGetTotalEnergyConsumption=lambda _handle: self.idle("the energy"),
            nvmlDeviceGetClockInfo=lambda *_a: self.idle("a clock"),
        )
        return pynvml


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program uses pynvml.{name}, which is not answered on paper",
            allowed=", ".join(sorted(known for known in vars(self) if known.startswith("nvml"))),
            remedy="leave it out, or put a module pynvml of your own in its place (--kernels, docs/run.md)",
        )
