"""Builders for replays: programs a person can read, and snapshots written by the model itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.allocator.blocks import Block, Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Synchronize, Use
from planner.units import parse_bytes

Entry = dict[str, Any]


@pytest.fixture(scope="session")
def recorded_snapshots() -> Path:
    """The folder of recorded snapshots; without it the tests that need it are skipped, in CI they fail."""
    root = Path(os.environ.get("PLANNER_TRUTH", Path(__file__).parents[4] / "shared" / "truth"))
    folder = root / "snapshots"
    if folder.is_dir():
        return folder
    reason = f"PLANNER_TRUTH: there are no recorded snapshots in {folder}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class TracingDevice(Device):
    """A device that writes down what is taken from it, in the words of a snapshot."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes)
        self.entries: list[Entry] = []
        self.ranges: list[int] = []
        self.owners: dict[int, int] = {}
        """The stream that each segment was taken for: an entry names that one, whatever runs at the time."""
        self.stream = 0

    def reserve_range(self, size: int) -> int:
        self.ranges.append(super().reserve_range(size))
        return self.ranges[-1]

    def take(self, size: int) -> int | None:
        address = super().take(size)
        if address is not None:
            self._note("segment_alloc", address, size)
        return address

    def give_back(self, address: int, size: int) -> None:
        super().give_back(address, size)
        self._note("segment_free", address, size)

    def map(self, address: int, size: int) -> bool:
        mapped = super().map(address, size)
        if mapped:
            self._note("segment_map", address, size)
        return mapped

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        self._note("segment_unmap", address, size)

    def _note(self, action: str, address: int, size: int) -> None:
        base = max((a for a in self.ranges if a <= address), default=address)
        stream = self.owners.setdefault(base, self.stream)
        if action == "segment_free":
            del self.owners[base]
        self.entries.append({"action": action, "addr": address, "size": size, "stream": stream})


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """Runs the commands of a program (lines that begin with `>`) and writes it again with what happened."""
    return run_program


@pytest.fixture(scope="session")
def recorded() -> Callable[..., dict[str, Any]]:
    """A snapshot as torch would dump it after these events; `keep` entries of the trace are left, the last ones."""
    return record


def run_program(text: str) -> str:
    """The program with, after each command, what the allocator did, and the memory at the end."""
    lines = text.splitlines()
    notes = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# ") and ": " in line)
    rules = Rules.from_conf(notes.get("conf", ""))
    capacity = parse_bytes(notes["capacity"]) if "capacity" in notes else None
    machine = _Machine(rules, TracingDevice(capacity))
    written: list[str] = []
    for line in lines:
        if line.startswith(("#", ">")):
            written.append(line)
        if line.startswith(">"):
            written += machine.run(*line[2:].split())
    return "\n".join([*written, machine.state(), ""])


class _Machine:
    def __init__(self, rules: Rules, device: TracingDevice) -> None:
        self.allocator = CachingAllocator(rules, device)
        self.device = device
        self.names: dict[str, int] = {}
        self.segments: dict[int, str] = {}
        self.named = 0

    def run(self, command: str, *words: str) -> list[str]:
        block: Block | None = None
        if command == "alloc":
            block = self._alloc(*words)
        elif command == "free":
            self.allocator.free(self.names[words[0]])
        elif command == "use":
            self.allocator.use(self.names[words[0]], int(words[1]))
        elif command == "passed":
            self.allocator.complete_free(self.names[words[0]])
        else:
            {"synchronize": self.allocator.synchronize, "empty_cache": self.allocator.empty_cache}[command]()
        did = [self._device_line(entry) for entry in self.device.entries]
        self.device.entries.clear()
        if command == "alloc":
            did.append(f"{words[0]} = {self._place(block)}" if block else "out of memory")
        return did

    def state(self) -> str:
        a = self.allocator
        figures = (("requested", a.requested), ("allocated", a.allocated), ("active", a.active))
        return "= " + ", ".join(f"{name} {size(n)}" for name, n in (*figures, ("reserved", a.reserved)))

    def _alloc(self, name: str, requested: str, stream: str = "0") -> Block | None:
        self.names[name] = len(self.names)
        return self.allocator.malloc(self.names[name], parse_bytes(requested), int(stream))

    def _place(self, block: Block) -> str:
        start = block.address - block.segment.address
        return f"{self.segments[block.segment.address]}[{size(start)}:{size(start + block.size)}]"

    def _name(self, address: int) -> str:
        if address not in self.segments:
            self.segments[address] = f"seg_{self.named}"
            self.named += 1
        return self.segments[address]

    def _device_line(self, entry: Entry) -> str:
        address, count = entry["addr"], entry["size"]
        if entry["action"] == "segment_alloc":
            self.segments.pop(address, None)
            return f"{self._name(address)} = cudaMalloc({size(count)})"
        if entry["action"] == "segment_free":
            return f"cudaFree({self.segments[address]})"
        verb = entry["action"].removeprefix("segment_")
        base = max(a for a in self.device.ranges if a <= address)
        start = address - base
        return f"{verb} {self._name(base)}[{size(start)}:{size(start + count)}]"


def size(count: int) -> str:
    """Exact, in the largest unit without a fraction."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit}{name}"
    return f"{count}B"


def record(
    events: Sequence[Event],
    conf: str = "",
    capacity_bytes: int | None = None,
    keep: int | None = None,
) -> dict[str, Any]:
    device = TracingDevice(capacity_bytes)
    allocator = CachingAllocator(Rules.from_conf(conf), device)
    blocks: dict[int, Entry] = {}
    trace = device.entries

    def note(action: str, block: Entry) -> None:
        trace.append({"action": action, **block})

    for event in events:
        if isinstance(event, Alloc):
            device.stream = event.stream
            block = allocator.malloc(event.block, event.requested_bytes, event.stream)
            assert block is not None
            blocks[event.block] = {
                "addr": block.address,
                "size": event.requested_bytes,
                "stream": event.stream,
            }
            note("alloc", blocks[event.block])
        elif isinstance(event, Free):
            note("free_requested", blocks[event.block])
            allocator.free(event.block)
            if event.block not in allocator._waiting:
                note("free_completed", blocks[event.block])
        elif isinstance(event, Use):
            allocator.use(event.block, event.stream)
        elif isinstance(event, FreeCompleted):
            if event.block in allocator._waiting:
                note("free_completed", blocks[event.block])
            allocator.complete_free(event.block)
        elif isinstance(event, Synchronize | EmptyCache):
            for name in allocator._waiting:
                note("free_completed", blocks[name])
            allocator.synchronize()
            if isinstance(event, EmptyCache):
                allocator.empty_cache()
    return {
        "segments": _segments(allocator),
        "device_traces": [trace if keep is None else trace[len(trace) - keep :]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf},
    }


def _segments(allocator: CachingAllocator) -> list[Entry]:
    waiting = set(map(id, allocator._waiting.values()))
    found: list[Entry] = []
    before: Block | None = None
    for block in allocator.blocks():
        if not block.mapped:
            before = None
            continue
        if before is None or before.after is not block:
            found.append(
                {
                    "device": 0, "address": block.address, "total_size": 0, "stream": block.pool.stream,
                    "segment_type": "small" if block.pool.small else "large",
                    "is_expandable": block.segment.expandable, "blocks": [],
                }
            )  # fmt: skip
        state = "inactive" if block.free else "active_pending_free" if id(block) in waiting else "active_allocated"
        found[-1]["blocks"].append({"size": block.size, "requested_size": block.requested, "state": state})
        found[-1]["total_size"] += block.size
        before = block
    return found
