"""Folds repetition: equal iterations and micro-batches are run once and then copied."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner.job import schema
from planner.training import blocks
from planner.training.observers import Observer
from planner.training.wraps.fsdp1 import flat_handles
from planner.training.wraps.fsdp2 import parameter_groups

_COUNTS_STEPS = ("RAdam",)
"""Optimizers that take other memory after some steps: its rectification begins when enough of them were taken."""


class NoExampleError(Exception):
    """A micro-batch whose forward was copied reaches a backward that has no example."""


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

    def copy(
        self,
        first: int,
        after: int,
        parents: Iterable[tuple[int, int, int]],
        given: Sequence[int],
        make: Callable[[], Sequence[Tensor]],
        taken: Sequence[tuple[int, int]] = (),
    ) -> tuple[int, Sequence[Tensor]]:
        """What happened between two places happens here once more, giving the tensors that `make` makes and
        using, in place of blocks from elsewhere, others."""

    def block_of(self, tensor: Tensor) -> int | None:
        """The block behind a tensor."""

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


class _AllocationState:
    def __init__(self, module: nn.Module) -> None:
        self._sharded = [child for child in module.modules() if isinstance(child, FSDPModule)]
        self._flat = flat_handles(module)
        self._module = module

    def now(self, *, whole: bool, gradients: bool) -> tuple[Any, ...]:
        """Which parameters are gathered, and what fully_shard and FullyShardedDataParallel keep for later.

        With `whole`, which gradients of whole parameters wait there to be reduced: only a backward looks at them.
        With `gradients`, which parameters have a gradient. And how much was compiled.
        """
        state: list[Any] = [blocks.graphs_so_far()]
        state += [_sharding_state(module._get_fsdp_state(), whole=whole) for module in self._sharded]
        state += [_flat_state(handle, whole=whole) for handle in self._flat]
        if gradients:
            state += [parameter.grad is None for parameter in self._module.parameters()]
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
        self._folder, self._states = folder, _AllocationState(module)
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


FORWARD, LOSS, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "L", "B", "I", "W"
BACKWARDS = (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
_ACCUMULATE = (BACKWARD, BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class ActionExample:
    """Where a micro-batch's action was run, and which of its blocks it gave to the schedule."""

    first: int
    after: int
    like: tuple[Tensor | None, ...]
    given: tuple[int, ...]
    received: tuple[int | None, ...]
    """Blocks of what other stages had sent for it."""
    kept_as_gradients: tuple[int, ...]
    """Inputs that hold what was given as their gradient."""
    uses: tuple[tuple[int, int], ...]
    """Where earlier actions of the same micro-batch were run whose blocks it uses."""


KeepExample = Callable[..., None]


class MicroBatchHistory:
    """What one stage knows of its micro-batches: which were run, which were copied, and examples of each action."""

    def __init__(self, folder: Folder, module: nn.Module, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._states = _AllocationState(module)
        self._examples: dict[tuple[Any, ...], ActionExample] = {}
        self._run: dict[tuple[str, int], tuple[int, int]] = {}
        self._copied: dict[tuple[str, int], int] = {}
        self._received: defaultdict[int, tuple[int | None, ...]] = defaultdict(tuple)
        self._runs: Counter[str] = Counter()
        self._must_run: frozenset[int] = frozenset()
        self._first_iteration = True

    def begin(self, order: Sequence[tuple[str, int]]) -> None:
        """An iteration begins; `order`: kinds and micro-batches of this stage's backward actions, as they come.

        The first to accumulate finds no gradients, so it is run; of the rest the first of each kind is an example.
        """
        firsts = [[m for kind, m in order if kind == wanted][:2] for wanted in BACKWARDS]
        accumulating = [m for kind, m in order if kind in _ACCUMULATE][:1]
        every = [m for few in firsts for m in few] if self._first_iteration else []
        self._must_run = frozenset(every + accumulating)
        self._first_iteration = False
        self._run.clear()
        self._copied.clear()
        self._received.clear()

    def receive(self, micro_batch: int, tensors: Sequence[Tensor]) -> None:
        """What other stages have sent for a micro-batch: each time it is allocated anew, also for a copied action."""
        self._received[micro_batch] += tuple(self._folder.block_of(_local(tensor)) for tensor in tensors)

    def was_copied(self, kind: str, micro_batch: int) -> bool:
        return (kind, micro_batch) in self._copied

    def find_example(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> ActionExample | None:
        """The stretch that can be told in the place of this action; None if it has to be run.

        `after`: the kinds of action of the same micro-batch whose blocks it uses.
        """
        copied_before = any(self.was_copied(before, micro_batch) for before in after)
        if (kind == FORWARD and micro_batch in self._must_run) or (after and not copied_before):
            return None
        example = self._examples.get((kind, self._state(kind)))
        if example is None and copied_before:
            raise NoExampleError(f"{kind}{micro_batch}")
        return example

    def copy_action(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> list[Tensor | None]:
        """The action is told; what it gives the schedule. Raises NoExampleError without an example of this state."""
        example = self._examples.get((kind, self._state(kind)))
        if example is None:
            raise NoExampleError(f"{kind}{micro_batch}")
        copied_before = [before for before in after if self.was_copied(before, micro_batch)]
        parents = [
            (*where, self._copied[before, micro_batch])
            for before, where in zip(copied_before, example.uses, strict=True)
        ]
        wanted = [tensor for tensor in example.like if tensor is not None]
        pairs = zip(example.received, self._received[micro_batch], strict=True)
        number, made = self._folder.copy(
            example.first,
            example.after,
            parents,
            example.given,
            lambda: [torch.empty(like.shape, dtype=like.dtype, device=self._device) for like in wanted],
            [(block, here) for block, here in pairs if block is not None and here is not None],
        )
        self._copied[kind, micro_batch] = number
        given = iter(made)
        return [None if like is None else next(given) for like in example.like]

    def run(self, kind: str, micro_batch: int, after: Sequence[str] = ()) -> KeepExample:
        """Before an action that is run. What is returned is called at its end, with the tensors that it gave the
        schedule and which of its inputs keep one as their gradient; it becomes an example if it left everything as it
        was."""
        state, first = self._state(kind), self._folder.place()

        def keep_example(given: Sequence[Tensor | None], kept_as_gradients: tuple[int, ...] = ()) -> None:
            where = self._run[kind, micro_batch] = (first, self._folder.place())
            self._runs[kind] += 1
            # The first of a kind may find what never recurs, such as a workspace that is not there yet.
            if self._runs[kind] == 1 or self._state(kind) != state or (kind, state) in self._examples:
                return
            blocks = [self._folder.block_of(tensor) for tensor in given if tensor is not None]
            known = tuple(block for block in blocks if block is not None)
            if len(known) < len(blocks):
                return
            self._examples[kind, state] = ActionExample(
                *where,
                like=tuple(None if tensor is None else _local(tensor).detach().to("meta") for tensor in given),
                given=known,
                received=self._received[micro_batch],
                kept_as_gradients=kept_as_gradients,
                uses=tuple(self._run[key] for earlier in after if (key := (earlier, micro_batch)) in self._run),
            )

        return keep_example

    def _state(self, kind: str) -> tuple[Any, ...]:
        return self._states.now(whole=kind in BACKWARDS, gradients=kind in _ACCUMULATE)


def _local(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)
