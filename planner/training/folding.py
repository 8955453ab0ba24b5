"""Folds repetition: equal iterations, and a pipeline stage's equal micro-batches, are run once and then copied.

Only an observer that writes events out again can be told (`Folder`); with any other everything is run. What is told has
to hold: the observer checks that a repetition leaves alive what it found, and refuses otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner.job import schema
from planner.training import compiling
from planner.training.observer import Observer

_COUNTS_STEPS = ("RAdam",)
"""Optimizers that take other memory after some steps: its rectification begins when enough of them were taken."""


class NoExampleError(Exception):
    """A micro-batch whose forward was told comes to a backward of which there is no example."""


@runtime_checkable
class Folder(Protocol):
    """An observer that can be told that something happens again."""

    folds: bool
    """Whether it wants to."""

    def place(self) -> int:
        """Here a stretch of events begins or ends; the number of the place."""

    def repeat(self, first: int, after: int, times: int) -> None:
        """What happened between two places happens here again, so many times."""

    def now(self) -> int:
        """How much has happened so far."""

    def is_closed(self, since: int) -> bool:
        """Whether exactly those blocks were given up since then (`now`) that were born since then."""

    def repeat_stretch(self, first: int, after: int, times: int, iterations: int = 0) -> None:
        """What happened between two places happens here so many times, `iterations` later, and leaves nothing."""

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


def folder_of(observer: Observer) -> Folder | None:
    """The observer, if it can be told of repetition and wants to be."""
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


@dataclass(frozen=True, slots=True)
class ActionExample:
    """Where a micro-batch's action was run, and which of its blocks it gave to the schedule."""

    first: int
    after: int
    micro_batch: int
    like: tuple[Tensor | None, ...]
    given: tuple[int, ...]
    received: tuple[int | None, ...] = ()
    """Blocks of what other stages had sent for it."""
    kept_as_gradients: tuple[int, ...] = ()
    """Inputs that hold what was given as their gradient."""


class AllocationState:
    """All that decides what an action of a module allocates, as far as earlier actions change it."""

    def __init__(self, module: nn.Module) -> None:
        self._sharded = [child for child in module.modules() if isinstance(child, FSDPModule)]
        self._module = module

    def before(self, *, whole: bool, gradients: bool) -> tuple[Any, ...]:
        """Which parameters are gathered, and what fully_shard keeps for later.

        With `whole`, which gradients of whole parameters wait there to be reduced: only a backward looks at them.
        With `gradients`, which parameters have a gradient. And how much was compiled.
        """
        found: list[Any] = [compiling.graphs_so_far()]
        found += [_sharding_of(each._get_fsdp_state(), whole=whole) for each in self._sharded]
        if gradients:
            found += [parameter.grad is None for parameter in self._module.parameters()]
        return tuple(found)


_KEPT_BY_GROUP = ("_all_gather_result", "_post_reduce_event", "_reshard_after_forward_event", "_all_reduce_state")
_KEPT_BY_CONTEXT = ("all_gather_state", "reduce_scatter_state")


def _sharding_of(state: Any, *, whole: bool) -> tuple[Any, ...]:
    """torch 2.13, fsdp/_fully_shard/_fsdp_state.py, _fsdp_param_group.py."""
    several = getattr(state, "_fsdp_param_groups", None)
    groups = several if several is not None else [state._fsdp_param_group] if state._fsdp_param_group else []
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
            for group in groups
        ),
    )
