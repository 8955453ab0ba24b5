"""The CUDA allocator's own history of a step, without call stacks, as a compressed pickle."""

from __future__ import annotations

import lzma
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_FRAMES = ("frames", "compile_context", "user_metadata")


@contextmanager
def record_history(path: Path | None) -> Iterator[None]:
    """Inside, the history is recorded, to be written at the end, out of memory or not; without a path nothing is."""
    if path is None:
        yield
        return
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    try:
        yield
    finally:
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(pickle.dumps(_without_frames(snapshot), protocol=4)))


def _without_frames(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The same snapshot in which nobody's paths stand."""
    traces = [[_bare(entry) for entry in trace] for trace in snapshot["device_traces"]]
    segments = [
        {**_bare(segment), "blocks": [_bare(block) for block in segment["blocks"]]} for segment in snapshot["segments"]
    ]
    return {**snapshot, "segments": segments, "device_traces": traces}


def _bare(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in _FRAMES}
