"""Folds the equal micro-batches of an accumulation: one of them is run, and the others are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from planner.job import schema
from planner.training.folding import AllocationState, Folder, folder_of
from planner.training.observer import Observer, RoleAssigner

_COUNTS_MICRO_BATCHES = ("power_sgd",)
"""Communication hooks that take other memory after some reductions."""

_SETTLED_REDUCTIONS = 3
"""The reducer rebuilds its buckets in the second, and with a static graph takes its map of used parameters in the third
(torch 2.13, torch/csrc/distributed/c10d/reducer.cpp)."""


@dataclass(frozen=True, slots=True)
class _MicroBatchExample:
    first: int
    after: int
    iteration: int
    state: tuple[Any, ...]


class AccumulationFolder:
    """Knows a micro-batch that left everything as it was, once one has been run."""

    def __init__(self, folder: Folder, module: nn.Module, train: schema.Train, parallel: schema.Parallel) -> None:
        self._folder, self._states = folder, AllocationState(module)
        # What is reduced in the last one only makes that one another kind.
        last_differs = parallel.dp_replicate.no_sync or parallel.dp_shard.no_sync or parallel.deepspeed is not None
        self._equal = train.gradient_accumulation_steps - last_differs
        # The reducer of DistributedDataParallel and DeepSpeed's engine remember earlier iterations.
        self._one_iteration = parallel.dp_replicate.degree > 1 or parallel.deepspeed is not None
        reduced_each_time = parallel.dp_replicate.degree > 1 and not parallel.dp_replicate.no_sync
        self._first_reduced = _SETTLED_REDUCTIONS + 1 if reduced_each_time else 2
        self._example: _MicroBatchExample | None = None

    def tell(self, iteration: int, micro_batch: int) -> int:
        """How many micro-batches from this one on are told here, and need not be run."""
        example, times = self._example, self._equal - micro_batch + 1
        if example is None or times < 1 or micro_batch == 1 or self._state() != example.state:
            return 0
        if self._one_iteration and example.iteration != iteration:
            return 0
        self._folder.repeat_stretch(example.first, example.after, times, iteration - example.iteration)
        return times

    @contextmanager
    def watch(self, iteration: int, micro_batch: int) -> Iterator[None]:
        """Around a micro-batch that is run: it becomes the example if it leaves everything as it was."""
        earliest = self._first_reduced if iteration == 1 else 2
        if not earliest <= micro_batch <= self._equal:
            yield
            return
        state, since, first = self._state(), self._folder.now(), self._folder.place()
        yield
        if isinstance(self._folder, RoleAssigner):
            self._folder.settle()
        if self._state() == state and self._folder.is_closed(since):
            self._example = _MicroBatchExample(first, self._folder.place(), iteration, state)

    def _state(self) -> tuple[Any, ...]:
        return self._states.before(whole=True, gradients=True)


def accumulation_folder_of(
    observer: Observer, module: nn.Module, train: schema.Train, parallel: schema.Parallel
) -> AccumulationFolder | None:
    """None where nothing can be folded, or the observer does not want it."""
    folder = folder_of(observer)
    if (
        folder is None
        or train.lengths is not None
        or train.retains
        or parallel.dp_replicate.comm_hook in _COUNTS_MICRO_BATCHES
    ):
        return None
    return AccumulationFolder(folder, module, train, parallel)
