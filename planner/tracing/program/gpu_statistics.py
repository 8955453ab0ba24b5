"""What a program is told of its GPUs and their memory: torch.cuda's statistics, NVML and `nvidia-smi`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

from planner.allocator.blocks import Block, Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.errors import TraceError
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.paper.recorder import Recorder
from planner.tracing.program.assumptions import About, Assumptions, place_of
from planner.units import MIB


# Keys as torch/csrc/cuda/Module.cpp (torch 2.13, THCPModule_memorySnapshot) has them. There are no stacks, and no
# history of events.
def snapshot_of(allocator: CachingAllocator, devices: int) -> dict[str, Any]:
    """Of an expandable segment every mapped stretch is one, as torch has it."""
    waiting = {id(each) for each in allocator.waiting()}
    return {
        "segments": [_segment(blocks, waiting) for blocks in _stretches(allocator)],
        "device_traces": [[] for _ in range(devices)],
        "allocator_settings": {"expandable_segments": allocator.rules.expandable_segments},
        "external_annotations": [],
    }


def _stretches(allocator: CachingAllocator) -> Iterator[list[Block]]:
    whole = groupby(allocator.blocks(), lambda block: (block.segment.address, block.mapped))
    return (list(blocks) for (_, mapped), blocks in whole if mapped)


def _segment(blocks: list[Block], waiting: set[int]) -> dict[str, Any]:
    first = blocks[0]
    used = [each for each in blocks if not each.free]
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(each.size for each in blocks),
        "allocated_size": sum(each.size for each in used if id(each) not in waiting),
        "active_size": sum(each.size for each in used),
        "requested_size": sum(each.requested for each in used),
        "stream": first.pool.stream,
        "segment_type": "small" if first.pool.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.segment.expandable,
        "frames": [],
        "blocks": [_block(each, is_waiting=id(each) in waiting) for each in blocks],
    }


def _block(block: Block, *, is_waiting: bool) -> dict[str, Any]:
    used = "active_awaiting_free" if is_waiting else "active_allocated"
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": 0 if block.free else block.requested,
        "state": "inactive" if block.free else used,
        "frames": [],
    }


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


_SCRIPT = """#!/bin/sh
refuse() {{
  echo "nvidia-smi of planner run knows -L, and --query-gpu of index, count, name, uuid, memory.total and" \\
    "compute_cap with --format=csv, not: $1" >&2
  exit 2
}}
fields= header=yes units=' MiB'
for word; do
  case $word in
    -L) ;;
    --query-gpu=*) fields=${{word#*=}} ;;
    --format=csv*)
      case $word in *noheader*) header= ;; esac
      case $word in *nounits*) units= ;; esac ;;
    *) refuse "$word" ;;
  esac
done
if [ -z "$fields" ]; then
  cat <<'END'
{lines}
END
  exit 0
fi
value() {{
  case $1 in
    index) printf %s "$2" ;;
    count) printf %s {count} ;;
    name|gpu_name) printf %s '{product}' ;;
    uuid|gpu_uuid) printf %s "GPU-paper-$2" ;;
    memory.total) printf %s "{mib}$units" ;;
    compute_cap) printf %s {capability} ;;
    *) refuse "$1" ;;
  esac
}}
words=$(printf %s "$fields" | tr -d ' ' | tr , ' ')
titles=$(printf %s "$words" | sed 's/ /, /g; s/memory.total/memory.total [MiB]/')
[ -z "$header" ] || printf '%s\\n' "$titles"
index=0
while [ $index -lt {count} ]; do
  line=
  for word in $words; do
    found=$(value "$word" $index) || exit 2
    line="$line${{line:+, }}$found"
  done
  printf '%s\\n' "$line"
  index=$((index + 1))
done
"""


@contextmanager
def on_the_path(product: str, total_bytes: int, count: int, capability: tuple[int, int]) -> Iterator[None]:
    """Inside, `nvidia-smi` answers for the GPUs of a node, whose memory in use it does not know; what else it is asked
    it refuses."""
    mib = total_bytes // MIB
    lines = "\n".join(f"GPU {index}: {product}, {mib} MiB (on paper)" for index in range(count))
    text = _SCRIPT.format(
        lines=lines, product=product, mib=mib, count=count, capability=f"{capability[0]}.{capability[1]}"
    )
    with tempfile.TemporaryDirectory(prefix="planner-smi-") as folder:
        script = Path(folder, "nvidia-smi")
        script.write_text(text, encoding="utf-8")
        script.chmod(0o700)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}):
            yield


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
        """As the device reports it; other GPUs of the node are taken to be as full as this one."""
        if index != torch.cuda.current_device():
            self._assume("memory of another GPU of the node is taken to be as much as of this one")
        return self._memory.total_bytes - self._memory.free_bytes()

    def idle(self, what: str) -> int:
        """The answer to a question that only a GPU at work could answer."""
        self._assume(f"{what} of the GPU was asked for and answered with 0")
        return 0

    def processes(self, index: int) -> list[Any]:
        """This process alone."""
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=self.used_bytes(index), gpuInstanceId=0xFFFFFFFF)]

    def list_processes(self, index: int) -> str:
        """`torch.cuda.list_gpu_processes` (torch 2.13, torch/cuda/memory.py)."""
        lines = [f"process {each.pid:>10d} uses {each.usedGpuMemory / MIB:>12.3f} MB GPU memory"
                 for each in self.processes(index)]  # fmt: skip
        return "\n".join([f"GPU:{index}", *lines])

    def _assume(self, sentence: str) -> None:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        self._assumptions.add(About.DEVICE, sentence, place_of(frames))

    def _handle(self, index: int) -> int:
        if not 0 <= int(index) < self._gpus:
            raise NVMLError(_CONSTANTS["NVML_ERROR_INVALID_ARGUMENT"])
        return int(index)

    def _memory_info(self, handle: int, version: Any = None) -> SimpleNamespace:
        total, used = self._memory.total_bytes, self.used_bytes(handle)
        found = SimpleNamespace(total=total, used=used, free=total - used)
        if version:
            found.version, found.reserved = version, 0
        return found

    def _activity(self, handle: int) -> SimpleNamespace:  # noqa: ARG002
        self.idle("the utilization")
        return SimpleNamespace(gpu=0, memory=0)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """By their names in pynvml; devices are named by their numbers."""
        nothing: Callable[..., None] = lambda *_arguments: None  # noqa: E731
        return {
            "nvmlInit": nothing,
            "nvmlInitWithFlags": nothing,
            "nvmlShutdown": nothing,
            "nvmlSystemGetDriverVersion": lambda: _DRIVER,
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetCount": lambda: self._gpus,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetName": lambda _handle: self._product,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-paper-{handle}",
            "nvmlDeviceGetMemoryInfo": self._memory_info,
            "nvmlDeviceGetCudaComputeCapability": lambda _handle: torch.cuda.get_device_capability(),
            "nvmlDeviceGetComputeRunningProcesses": self.processes,
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _handle: [],
            "nvmlDeviceGetUtilizationRates": self._activity,
            "nvmlDeviceGetTemperature": lambda *_a: self.idle("the temperature"),
            "nvmlDeviceGetPowerUsage": lambda _handle: self.idle("the power"),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _handle: self.idle("the power limit"),
            "nvmlDeviceGetTotalEnergyConsumption": lambda _handle: self.idle("the energy"),
            "nvmlDeviceGetClockInfo": lambda *_a: self.idle("a clock"),
        }

    def module(self) -> ModuleType:
        """What `import pynvml` finds."""
        made = _Module("pynvml")
        vars(made).update(_CONSTANTS, NVMLError=NVMLError, __version__="13.0.0", **self.functions())
        return made


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program uses pynvml.{name}, which is not answered on paper",
            allowed=", ".join(sorted(each for each in vars(self) if each.startswith("nvml"))),
            remedy="leave it out, or put a module pynvml of your own in its place (--kernels, docs/run.md)",
        )
