"""What a data loader reads ahead: batches in shared memory or pinned, and its workers.

torch 2.13, utils/data/dataloader.py: `num_workers * prefetch_factor` batches are asked for ahead
(`_MultiProcessingDataLoaderIter.__init__`, `_reset`), and the loop has one more. A worker puts them together in shared
memory (utils/data/_utils/collate.py); with `pin_memory` a thread of the rank copies each into pinned memory and lets go
of the other (_utils/pin_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    ahead = loader.workers * loader.prefetch_factor + 1
    worker = processes.WORKER.best_bytes + loader.worker_bytes
    yield from _read_by_workers(sizes, ahead, loader.workers, worker, pins=loader.pin_memory)


def loader_margins(loader: DataLoader, tensors: Iterable[int]) -> tuple[int, int]:
    """How many bytes fewer, and more, the workers may take than `loader_blocks` has.

    What a worker keeps of the samples that it put together is for the C library to say (glibc 2.39, malloc: memory of
    freed blocks below 32 MiB may stay): none, one batch, or, measured at worst, four.
    """
    return _margins(loader.workers, processes.WORKER, sum(tensors))


def started_blocks(started: LoaderStarted) -> Iterator[HostBlock]:
    """What a program's loader holds besides the batch in hand: what is read ahead, and the workers."""
    sizes = [each for each in started.tensors if each]
    worker = _fact_of(started).best_bytes
    yield from _read_by_workers(sizes, started.ahead, started.workers, worker, pins=started.pin_memory)


def started_margins(started: LoaderStarted) -> tuple[int, int]:
    """As `loader_margins`, of a program's loader."""
    return _margins(started.workers, _fact_of(started), sum(started.tensors))


def _fact_of(started: LoaderStarted) -> Fact:
    """A worker that is no fork has read its libraries itself."""
    return processes.TORCH if started.spawned else processes.WORKER


def _read_by_workers(
    sizes: Sequence[int], ahead: int, workers: int, worker_bytes: int, *, pins: bool
) -> Iterator[HostBlock]:
    yield from _batches(sizes, ahead, pinned=pins, name="read ahead")
    if pins:
        yield from _batches(sizes, 1, pinned=False, name="being pinned")
    held = worker_bytes + sum(sizes)
    yield HostBlock(bytes=held, category=HostCategory.WORKER, name="data loader", count=workers)


def _margins(workers: int, fact: Fact, batch: int) -> tuple[int, int]:
    fewer, more = fact.best_bytes - fact.low_bytes + batch, fact.high_bytes - fact.best_bytes + 3 * batch
    return workers * fewer, workers * more


def _batches(sizes: Iterable[int], count: int, *, pinned: bool, name: str) -> Iterator[HostBlock]:
    for size in sizes:
        yield HostBlock(bytes=size, category=HostCategory.BATCH, pinned=pinned, name=name, count=count)
