"""Measures what real processes hold: steps of two ranks over gloo.

`python tests/planning/host/real_processes.py JOB.json FOLDER` prints one JSON object, in bytes. Ranks are
forked from this process, which has imported all that they need. Blocks above 1 MiB go back to the system
when they are freed (MALLOC_MMAP_THRESHOLD_, set by whoever starts this): otherwise glibc may keep those up to 32 MiB.
"""

from __future__ import annotations

import gc
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import fsdp  # noqa: F401  # what the step imports is there before anything is measured

from planner.events import Phase
from planner.job.loading import load_document
from planner.training import step
from planner.training.phases import Phases


def resident() -> int:
    """Bytes of this process."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return next(int(row[1]) * 1024 for row in rows if row[0] == "Rss:")


def highest() -> int:
    """The most that was resident since `forget_highest`."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def forget_highest() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Watching:
    """What the process grew by at the highest point of each phase."""

    def __init__(self, before: int) -> None:
        self.before, self.grown, self._open = before, {}, ""

    def mark(self, phase: Phase, iteration: int) -> None:
        self.close()
        self._open = f"{phase.value} {iteration}"
        forget_highest()

    def close(self) -> None:
        if self._open:
            self.grown[self._open] = highest() - self.before


def train(job: dict[str, Any], rank: int, store: str) -> dict[str, int]:
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    small = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab": 64}
    step.run(load_document({**job, "model": {"decoder": small}}), torch.device("cpu"), rank=rank)  # what it imports
    watching = Watching(resident())
    watching.mark(Phase.LOAD, 0)
    with Phases(watching.mark).heard():
        kept = step.run(load_document(job), torch.device("cpu"), rank=rank)
    watching.close()
    del kept
    dist.destroy_process_group()
    return watching.grown


def main(job: dict[str, Any], folder: Path) -> None:
    gc.freeze()  # a collection in a forked process writes to all that this one has: whether one falls into it is chance
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        ranks = list(pool.map(train, [job] * 2, range(2), [str(folder / "store")] * 2))
    print(json.dumps({"ranks": ranks}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
