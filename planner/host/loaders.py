"""What a data loader reads ahead: batches in shared memory or pinned, and its workers.

torch 2.13, utils/data/dataloader.py: `num_workers * prefetch_factor` batches are asked for ahead
(`_MultiProcessingDataLoaderIter.__init__`, `_reset`), and the loop has one more. A worker puts them together in shared
memory (utils/data/_utils/collate.py); with `pin_memory` a thread of the rank copies each into pinned memory and lets go
of the other (_utils/pin_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from planner.host import processes
from planner.host.processes import Fact
from planner.host_events import HostBlock, HostCategory, LoaderStarted
from planner.job.schema import DataLoader


def loader_blocks(loader: DataLoader, tensors: Iterable[int]) -> Iterator[HostBlock]:
    """What one loader holds once it is read: `tensors` are the bytes of each tensor of a batch."""
    sizes = [each for each in tensors if each]
    if not loader.workers:
        yield from _batches(sizes, 1, pinned=loader.pin_memory, name="in use")
        return
    ahead = loader.workers * loader.prefetch_factor
    yield from _batches(sizes, ahead + 1, pinned=loader.pin_memory, name="read ahead")
    if loader.pin_memory:
        yield from _batches(sizes, 1, pinned=False, name="being pinned")
    worker = processes.WORKER.best_bytes + sum(sizes) + loader.worker_bytes
    yield HostBlock(bytes=worker, category=HostCategory.WORKER, name="data loader", count=loader.workers)


def loader_margins(loader: DataLoader, tensors: Iterable[int]) -> tuple[int, int]:
    """How many bytes fewer, and more, the workers may take than `loader_blocks` has.

    What a worker keeps of the samples that it put together is for the C library to say (glibc 2.39, malloc: memory of
    freed blocks below 32 MiB may stay): none, one batch, or, measured at worst, four.
    """
    batch = sum(tensors)
    fewer = processes.WORKER.best_bytes - processes.WORKER.low_bytes + batch
    more = processes.WORKER.high_bytes - processes.WORKER.best_bytes + 3 * batch
    return loader.workers * fewer, loader.workers * more


def started_blocks(started: LoaderStarted) -> Iterator[HostBlock]:
    """What a program's loader holds besides the batch in hand: what is read ahead, and the workers."""
    sizes = [each for each in started.tensors if each]
    yield from _batches(sizes, started.ahead, pinned=started.pin_memory, name="read ahead")
    if started.pin_memory:
        yield from _batches(sizes, 1, pinned=False, name="being pinned")
    worker = _fact_of(started).best_bytes + sum(sizes)
    yield HostBlock(bytes=worker, category=HostCategory.WORKER, name="data loader", count=started.workers)


def started_margins(started: LoaderStarted) -> tuple[int, int]:
    """As `loader_margins`, of a program's loader."""
    fact, batch = _fact_of(started), sum(started.tensors)
    fewer, more = fact.best_bytes - fact.low_bytes + batch, fact.high_bytes - fact.best_bytes + 3 * batch
    return started.workers * fewer, started.workers * more


def _fact_of(started: LoaderStarted) -> Fact:
    """A worker that is no fork has read its libraries itself."""
    return processes.TORCH if started.spawned else processes.WORKER


def _batches(sizes: Iterable[int], count: int, *, pinned: bool, name: str) -> Iterator[HostBlock]:
    for size in sizes:
        yield HostBlock(bytes=size, category=HostCategory.BATCH, pinned=pinned, name=name, count=count)
