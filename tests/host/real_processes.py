"""Measures what real processes hold: steps of two ranks over gloo, batches that a data loader has read ahead.

`python tests/host/real_processes.py JOB.json FOLDER` prints one JSON object, in bytes. Every measurement is taken in
processes that are forked from this one, which has imported all that they need. Blocks above 1 MiB go back to the system
when they are freed (MALLOC_MMAP_THRESHOLD_, set by whoever starts this): otherwise glibc may keep those up to 32 MiB.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import fsdp  # noqa: F401  # what the step imports is there before anything is measured
from torch.utils.data import DataLoader, Dataset

from planner.events import Category, Phase
from planner.job.loading import load_document
from planner.training import step
from planner.training.observers import NullObserver

WORKERS, PREFETCH, SAMPLES, SAMPLE_ELEMENTS = 2, 2, 16, 131072
"""A batch of 16 MiB: samples of 1 MiB."""


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


class Watching(NullObserver):
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

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None: ...


def train(job: dict[str, Any], rank: int, store: str) -> dict[str, int]:
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    small = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab": 64}
    step.run(load_document({**job, "model": {"decoder": small}}), torch.device("cpu"), rank=rank)  # what it imports
    watching = Watching(resident())
    kept = step.run(load_document(job), torch.device("cpu"), watching, rank=rank)
    watching.close()
    del kept
    dist.destroy_process_group()
    return watching.grown


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SAMPLE_ELEMENTS,), index, dtype=torch.int64)


def read_ahead(_rank: int) -> dict[str, int]:
    """The shared memory that the process and its workers hold, mapped or not."""
    batches = iter(DataLoader(Samples(), batch_size=SAMPLES, num_workers=WORKERS, prefetch_factor=PREFETCH))
    for _ in range(4):
        batch = next(batches)
    time.sleep(0.7)  # until all is read ahead
    workers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = {"shared": shared_memory("self", *workers), "batch": batch.nbytes}
    del batch, batches
    return found


def shared_memory(*processes: str) -> int:
    """Bytes of the files of shared memory that these processes have open."""
    opened = [each for process in processes for each in Path(f"/proc/{process}/fd").iterdir() if each.is_symlink()]
    files = [each.stat() for each in opened if os.readlink(each).startswith("/dev/shm/")]
    return sum({each.st_ino: each.st_blocks * 512 for each in files}.values())


def forked(work: Callable[[int], dict[str, int]], processes: int = 1) -> list[dict[str, int]]:
    """What the work answers in so many processes at once."""
    running = []
    for rank in range(processes):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            warm_up()  # pages of libraries, which a fork begins without
            os.write(write, json.dumps(work(rank)).encode())
            os._exit(0)
        os.close(write)
        running.append((child, read))
    answers = []
    for child, read in running:
        with os.fdopen(read) as pipe:
            answers.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    return answers


def warm_up() -> None:
    """Libraries and threads that a first step brings along."""
    layer = torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 64), torch.nn.SiLU())
    optimizer = torch.optim.AdamW(layer.parameters())
    torch.nn.functional.cross_entropy(layer(torch.arange(4)), torch.arange(4)).backward()
    optimizer.step()


def main(job: dict[str, Any], folder: Path) -> None:
    warm_up()
    gc.freeze()  # a collection in a forked process writes to all that this one has: whether one falls into it is chance
    found: dict[str, Any] = {"loader": forked(read_ahead)[0]}
    found["ranks"] = forked(lambda rank: train(job, rank, str(folder / "store")), 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
