"""Folds repetition: equal iterations and micro-batches are run once and then repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.distributed.fsdp import FSDPModule

from planner.job import schema
from planner.training import blocks
from planner.training.observers import Observer
from planner.training.wraps.fsdp1 import flat_handles
from planner.training.wraps.fsdp2 import parameter_groups

_COUNTS_STEPS = ("RAdam",)
"""Optimizers that take other memory after some steps: its rectification begins when enough of them were taken."""


@runtime_checkable
class Folder(Protocol):
    """An observer that can be told that something happens again."""

    folds: bool
    """Whether it wants to."""

    def place(self) -> int:
        """Here a stretch of events begins or ends; the number of the place."""

    def repeat(self, first: int, after: int, times: int, iterations: int = 0, *, whole: bool = False) -> None:
        """What happened between two places happens here so many times, `iterations` later, and leaves nothing; or it is
        a `whole` iteration, which leaves for the next what it found."""

    def now(self) -> int:
        """How much has happened so far."""

    def is_closed(self, since: int) -> bool:
        """Whether exactly the blocks allocated since then (`now`) were freed since then."""

    def settle(self) -> None:
        """Wait until autograd's threads have freed the graph of the backward that has just ended."""


def find_folder(observer: Observer) -> Folder | None:
    """The observer, if it folds repetition."""
    return observer if isinstance(observer, Folder) and observer.folds else None


def iterations_are_alike(train: schema.Train, parallel: schema.Parallel) -> bool:
    """Whether every iteration from the second on does the same.

    Not where something counts them: evaluations, checkpoints, releases of the cache, batches of other lengths, what is
    retained, DistributedDataParallel and its hooks, some optimizers.
    """
    replicated = parallel.dp_replicate.degree > 1 and parallel.dp_shard.degree == 1
    at_times = train.eval is not None or train.checkpoint_save is not None
    counts = at_times or train.empty_cache_every > 1 or train.lengths is not None or train.retains
    return not counts and not replicated and train.optimizer.name not in _COUNTS_STEPS


class AllocationState:
    """What decides which memory a forward or a backward of a module takes."""

    def __init__(self, module: nn.Module) -> None:
        self._sharded = [child for child in module.modules() if isinstance(child, FSDPModule)]
        self._flat = flat_handles(module)
        self._parameters = [child._parameters for child in module.modules()]

    def now(self, *, whole: bool, gradients: bool) -> tuple[Any, ...]:
        """Which parameters are gathered, and what fully_shard and FullyShardedDataParallel keep for later.

        With `whole`, which gradients of whole parameters wait there to be reduced: only a backward looks at them.
        With `gradients`, which parameters have a gradient. And how much was compiled.
        """
        state: list[Any] = [blocks.graphs_so_far()]
        state += [_sharding_state(module._get_fsdp_state(), whole=whole) for module in self._sharded]
        state += [_flat_state(handle, whole=whole) for handle in self._flat]
        if gradients:
            parameters = (parameter for each in self._parameters for parameter in each.values())
            state += [parameter is None or parameter.grad is None for parameter in parameters]
        return tuple(state)


# torch 2.13, fsdp/_fully_shard/_fsdp_state.py, _fsdp_param_group.py.
_KEPT_BY_GROUP = ("_all_gather_result", "_post_reduce_event", "_reshard_after_forward_event", "_all_reduce_state")
_KEPT_BY_CONTEXT = ("all_gather_state", "reduce_scatter_state")


def _sharding_state(state: Any, *, whole: bool) -> tuple[Any, ...]:
    context = state._comm_ctx
    return (
        state._training_state,
        tuple(getattr(context, name, None) is None for name in _KEPT_BY_CONTEXT),
        len(getattr(context, "reduce_scatter_states", ())),
        tuple(
            (
                group._training_state,
                group._sharded_state,
                tuple(getattr(group, name, None) is None for name in _KEPT_BY_GROUP),
                tuple(
                    (param.sharded_state, whole and param.unsharded_accumulated_grad is None)
                    for param in group.fsdp_params
                ),
            )
            for group in parameter_groups(state)
        ),
    )


def _flat_state(handle: Any, *, whole: bool) -> tuple[Any, ...]:
    """torch 2.13, fsdp/_flat_param.py: the whole parameter's storage is empty while it is not gathered."""
    flat = handle.flat_param
    gathered = getattr(flat, "_full_param_padded", None)
    return (
        gathered is not None and gathered.untyped_storage().nbytes(),
        handle._prefetched,
        hasattr(flat, "_saved_grad_shard"),
        whole and flat.grad is None,
    )


_COUNTS_MICRO_BATCHES = ("power_sgd",)
"""Communication hooks that take other memory after some reductions."""

_SETTLED_REDUCTIONS = 3
"""The reducer rebuilds its buckets in the second, and with a static graph takes its map of used parameters in the third
(torch 2.13, torch/csrc/distributed/c10d/reducer.cpp)."""


def find_accumulation_folder(
    observer: Observer, module: nn.Module, train: schema.Train, parallel: schema.Parallel
) -> AccumulationFolder | None:
    """None where nothing can be folded, or the observer does not want it."""
    folder, hook = find_folder(observer), parallel.dp_replicate.comm_hook
    if folder is None or train.lengths is not None or train.retains or hook in _COUNTS_MICRO_BATCHES:
        return None
    return AccumulationFolder(folder, module, train, parallel)


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
        last_differs = parallel.dp_replicate.no_sync or parallel.dp_shard.no_sync
        self._equal = train.gradient_accumulation_steps - last_differs
        # The reducer of DistributedDataParallel remembers earlier iterations; under NO_SHARD each micro-batch uses the
        # gradient of this iteration on another stream.
        self._one_iteration = parallel.dp_replicate.degree > 1 or parallel.dp_shard.no_shard
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
        self._folder.repeat(example.first, example.after, times, iteration - example.iteration)
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
        self._folder.settle()
        if self._state() == state and self._folder.is_closed(since):
            self._example = _MicroBatchExample(first, self._folder.place(), iteration, state)

    def _state(self) -> tuple[Any, ...]:
        return self._states.now(whole=True, gradients=True)
