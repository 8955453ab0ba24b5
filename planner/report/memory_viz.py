"""A predicted memory history as a snapshot that PyTorch's own viewers open (pytorch.org/memory_viz).

The format is that of `torch.cuda.memory._dump_snapshot` (torch 2.13, torch/csrc/cuda/memory_snapshot.cpp and
torch/cuda/_memory_viz.py): a pickle of plain values. Where a recorded snapshot has call stacks, a predicted one
has the module path and the operator of each block and the phase in which it was asked for; where it has microseconds,
a predicted one counts events.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.allocator.blocks import Block, Device
from planner.allocator.caching import CachingAllocator
from planner.allocator.rules import Rules
from planner.events import Alloc, EmptyCache, Event, Free, FreeCompleted, Mark, Synchronize, Use
from planner.report.attribution import Life, lives
from planner.report.recorded_snapshot import ORIGIN, PHASE, PLANNED, ROLE


def write_snapshot(path: Path, events: Sequence[Event], conf: str = "", capacity_bytes: int | None = None) -> None:
    """Writes the snapshot of :func:`snapshot` as a pickle of plain values."""
    path.write_bytes(pickle.dumps(snapshot(events, conf, capacity_bytes), protocol=4))


def snapshot(events: Sequence[Event], conf: str = "", capacity_bytes: int | None = None) -> dict[str, Any]:
    """The events replayed, with every segment and block that the allocator made, in the form of a recorded snapshot.

    `conf` is PYTORCH_ALLOC_CONF. With `capacity_bytes`, what segments may take, the history ends where the memory
    runs out, as a recorded one would. Raises AllocatorConfError for a conf that is not modelled.
    """
    rules = Rules.from_conf(conf)
    history = _History(events, rules, capacity_bytes)
    history.replay()
    return {
        "segments": history.segments(),
        "device_traces": [history.trace],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": conf,
            "max_split_size": rules.max_split_bytes if rules.max_split_bytes is not None else -1,
            "garbage_collection_threshold": rules.garbage_collection_threshold,
            "expandable_segments": rules.expandable_segments,
        },
        "external_annotations": history.annotations,
    }


class _RecordingDevice(Device):
    """A device that writes down what is taken from it and given back."""

    def __init__(self, history: _History, capacity_bytes: int | None) -> None:
        super().__init__(capacity_bytes)
        self._history = history

    def take(self, size: int) -> int | None:
        address = super().take(size)
        if address is not None:
            self._history.note("segment_alloc", address, size)
        return address

    def give_back(self, address: int, size: int) -> None:
        super().give_back(address, size)
        self._history.note("segment_free", address, size)

    def map(self, address: int, size: int) -> bool:
        done = super().map(address, size)
        if done:
            self._history.note("segment_map", address, size)
        return done

    def unmap(self, address: int, size: int) -> None:
        super().unmap(address, size)
        self._history.note("segment_unmap", address, size)


class _History:
    """A replay that is written down in the words of a recorded snapshot."""

    def __init__(self, events: Sequence[Event], rules: Rules, capacity_bytes: int | None) -> None:
        self.trace: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self._events = events
        self._lives = lives(events)
        self._allocator = CachingAllocator(rules, _RecordingDevice(self, capacity_bytes))
        self._blocks: dict[int, Block] = {}
        self._streams: dict[int, int] = {}
        self._frames: dict[int, list[dict[str, Any]]] = {}
        self._names: dict[int, int] = {}
        """The name of the block that starts at an address now."""
        self._waiting: set[int] = set()
        self._moment = self._stream = 0
        self._phase: Mark | None = None

    def replay(self) -> None:
        for moment, event in enumerate(self._events):
            self._moment = moment
            if isinstance(event, Alloc):
                if not self._alloc(event):
                    break
            elif isinstance(event, Free):
                self._free(event.block)
            elif isinstance(event, Use):
                self._allocator.use(event.block, event.stream)
            elif isinstance(event, FreeCompleted):
                self._allocator.complete_free(event.block)
                self._complete_frees({event.block})
            elif isinstance(event, Synchronize | EmptyCache):
                self._complete_frees(set(self._waiting))
                if isinstance(event, EmptyCache):
                    self._allocator.empty_cache()
                else:
                    self._allocator.synchronize()
            elif isinstance(event, Mark):
                self._annotate("END")
                self._phase = event
                self._annotate("START")
        self._annotate("END")

    def note(self, action: str, address: int, size: int, life: Life | None = None) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": self._stream, "time_us": self._moment}
        entry["frames"] = self._frames.get(life.block, []) if life else []
        if life:
            entry["category"] = life.category_at(life.birth).value
        self.trace.append(entry)

    def segments(self) -> list[dict[str, Any]]:
        segments: list[dict[str, Any]] = []
        end = -1
        for block in self._allocator.blocks():
            if not block.mapped:
                continue
            if block.before is None or block.address != end or not segments:
                segments.append(
                    {
                        "device": 0,
                        "address": block.address,
                        "total_size": 0,
                        "allocated_size": 0,
                        "active_size": 0,
                        "requested_size": 0,
                        "stream": block.pool.stream,
                        "segment_type": "small" if block.pool.small else "large",
                        "segment_pool_id": (0, 0),
                        "is_expandable": block.segment.expandable,
                        "frames": [],
                        "blocks": [],
                    }
                )
            end = block.address + block.size
            name, state = self._names.get(block.address, -1), "inactive"
            if not block.free:
                state = "active_pending_free" if name in self._waiting else "active_allocated"
            segment = segments[-1]
            segment["blocks"].append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": 0 if block.free else block.requested,
                    "state": state,
                    "frames": [] if block.free else self._frames.get(name, []),
                }
            )
            segment["total_size"] += block.size
            if not block.free:
                segment["active_size"] += block.size
                segment["requested_size"] += block.requested
            if state == "active_allocated":
                segment["allocated_size"] += block.size
        return segments

    def _alloc(self, event: Alloc) -> bool:
        self._stream = self._streams[event.block] = event.stream
        block = self._allocator.malloc(event.block, event.requested_bytes, event.stream)
        life = self._lives[event.block]
        # Before memory runs out the allocator waits for the streams: what waited for them is free then.
        self._complete_frees({name for name in self._waiting if self._blocks[name].uses is None})
        if block is None:
            device = self._allocator.device
            free = 0 if device.capacity_bytes is None else device.capacity_bytes - device.taken_bytes
            self.note("oom", 0, event.requested_bytes)
            self.trace[-1]["device_free"] = free
            return False
        self._frames[event.block] = self._frames_of(life)
        self._blocks[event.block] = block
        self._names[block.address] = event.block
        if block.size:
            self.note("alloc", block.address, event.requested_bytes, life)
        return True

    def _free(self, name: int) -> None:
        block, life = self._blocks[name], self._lives[name]
        self._stream = self._streams[name]
        if block.size:
            self.note("free_requested", block.address, life.requested_bytes, life)
        self._waiting.add(name)
        if block.uses is None:
            self._complete_frees({name})
        self._allocator.free(name)

    def _complete_frees(self, names: set[int]) -> None:
        for name in sorted(names & self._waiting):
            block = self._blocks.pop(name)
            self._waiting.remove(name)
            self._stream = self._streams[name]
            if block.size:
                self.note("free_completed", block.address, self._lives[name].requested_bytes, self._lives[name])

    def _annotate(self, stage: str) -> None:
        if self._phase is not None:
            name = f"{self._phase.phase.value} {self._phase.iteration}"
            self.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": self._moment})

    def _frames_of(self, life: Life) -> list[dict[str, Any]]:
        role, phase = life.role_at(life.birth), self._phase
        frames = [_frame(ORIGIN, life.origin.module or "(no module)", life.origin.op or "(no operator)")]
        if role and role.name:
            frames.append(_frame(ROLE, role.category.value, role.name))
        if phase is not None:
            frames.append(_frame(PHASE, f"iteration {phase.iteration}", phase.phase.value))
        return frames


def _frame(about: str, place: str, name: str) -> dict[str, Any]:
    return {"filename": place, "line": 0, "name": name, PLANNED: about}
