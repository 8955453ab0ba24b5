"""Allocations and frees of single calls, by the parts of a call: on a GPU, on a CPU, and on the paper GPU.

On a GPU the order comes from the allocator's own history, on a CPU from the profiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch

from planner.events import Alloc, Event, Free, Phase
from planner.truth.measuring.host_recorder import HostRecorder

Steps = dict[str, list[int]]
"""By the name of a part: requested bytes of its allocations (+) and frees (-), in order."""


class AllocationHistory(Protocol):
    """Records between `with` and its end; parts begin where they are marked."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def mark(self, name: str) -> None:
        """A part of this name begins."""

    def steps(self) -> Steps:
        """After the end: what every part allocated and freed."""


class PaperRecorder(Protocol):
    """What is asked of the paper GPU's recorder."""

    def now(self) -> int: ...

    def plain_events(self, since: int) -> list[Event]: ...


def history_of(device: torch.device, paper: PaperRecorder | None = None) -> AllocationHistory:
    """A history of what is allocated on this device; `paper` where that is the paper GPU."""
    if paper is not None:
        return _PaperHistory(paper)
    return _CudaHistory(device) if device.type == "cuda" else _HostHistory()


class _PaperHistory:
    """Steps from the recorder of the paper GPU."""

    def __init__(self, recorder: PaperRecorder) -> None:
        self._recorder = recorder
        self._marks: list[tuple[str, int]] = []
        self._began = self._ended = 0
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        self._began = self._recorder.now()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = self._recorder.now()
        self._events = self._recorder.plain_events(self._began)

    def mark(self, name: str) -> None:
        self._marks.append((name, self._recorder.now() - self._began))

    def steps(self) -> Steps:
        sizes: dict[int, int] = {}
        return {name: _sign_sizes(self._events[begin:end], sizes) for name, begin, end in self._parts()}

    def _parts(self) -> list[tuple[str, int, int]]:
        ends = [position for _, position in self._marks[1:]] + [len(self._events)]
        return [(name, begin, end) for (name, begin), end in zip(self._marks, ends, strict=True)]


class _HostHistory:
    """Steps from the profiler's memory events."""

    def __init__(self) -> None:
        self._recorder = HostRecorder()
        self._profiled: Any = None
        self._names: list[str] = []

    def __enter__(self) -> Self:
        self._profiled = self._recorder.profile()
        self._profiled.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._profiled.__exit__(*error)

    def mark(self, name: str) -> None:
        self._names.append(name)
        self._recorder.mark(Phase.FORWARD, len(self._names))

    def steps(self) -> Steps:
        parts: list[list[Event]] = []
        for event in self._recorder.build_recording().events:
            if isinstance(event, Alloc | Free):
                parts[-1].append(event) if parts else None
            else:
                parts.append([])
        sizes: dict[int, int] = {}
        return {name: _sign_sizes(part, sizes) for name, part in zip(self._names, parts, strict=True)}


class _CudaHistory:
    """Steps from the history of the caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, int]] = []
        self._trace: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        torch.cuda.memory._record_memory_history(context=None, stacks="python", max_entries=100_000)
        return self

    def __exit__(self, *_: object) -> None:
        self._trace = self._entries()
        torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self, name: str) -> None:
        self._marks.append((name, len(self._entries())))

    def steps(self) -> Steps:
        ends = [position for _, position in self._marks[1:]] + [len(self._trace)]
        return {
            name: [
                entry["size"] if entry["action"] == "alloc" else -entry["size"]
                for entry in self._trace[begin:end]
                if entry["action"] in ("alloc", "free_requested")
            ]
            for (name, begin), end in zip(self._marks, ends, strict=True)
        }

    def _entries(self) -> list[dict[str, Any]]:
        index = self._device.index or 0
        return list(torch.cuda.memory._snapshot()["device_traces"][index])


def _sign_sizes(events: Sequence[Event], sizes: dict[int, int]) -> list[int]:
    """Of what was allocated since the first mark; `sizes` is carried from part to part."""
    found = []
    for event in events:
        if isinstance(event, Alloc):
            sizes[event.block] = event.requested_bytes
            found.append(event.requested_bytes)
        elif isinstance(event, Free) and event.block in sizes:
            found.append(-sizes[event.block])
    return found
