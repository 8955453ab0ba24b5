"""Checkpoints of one rank whose peers are absent: what torch's checkpoint code agrees on with them, it decides alone.

torch.distributed.checkpoint plans for all ranks on one of them: alone, each rank plans its own part, as if it were the
one. Before rank 0 sends a state dict, it announces names and shapes: they are those of this rank's own, whose shards
know the shapes of their wholes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from planner import upstream
from planner.job import schema
from planner.training import absent_peers
from planner.upstream import checking

_WRAPPER = "torch.distributed.checkpoint.utils:_DistWrapper.__init__"
_VALIDATE = "torch.distributed.checkpoint.default_planner:_validate_global_plan"
_BROADCASTS = (
    "torch.distributed._state_dict_utils:_broadcast_state_dict",
    "torch.distributed.checkpoint.state_dict:_broadcast_state_dict",
)
_OBJECTS = "torch.distributed:broadcast_object_list"


ANNOUNCED = "rank 0 announces the state dict that it sends: names and shapes are taken to be those of this rank's own"


@contextmanager
def alone(said: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Inside, checkpoints are saved and loaded without asking the other ranks; `said` hears what is assumed."""
    wrapped: dict[str, upstream.Wrapper] = {
        _WRAPPER: _coordinating_alone,
        _VALIDATE: _for_a_part,
        **dict.fromkeys(_BROADCASTS, partial(_announcing_own, said)),
    }
    with upstream.patch_targets("checkpoint peers", wrapped=wrapped):
        yield


def where_absent(train: schema.Train) -> AbstractContextManager[None]:
    """As `alone`, for a step that has to do with checkpoints in a world of absent peers.

    Raises TraceError if torch is not the one whose checkpoints planner knows.
    """
    if train.checkpoint_load is None and train.checkpoint_save is None:
        return nullcontext()
    checking.enforce("checkpoints")
    return alone() if dist.is_initialized() and dist.get_backend() == absent_peers.BACKEND else nullcontext()


def _coordinating_alone(real: Callable[..., None]) -> Callable[..., None]:
    """As `no_dist` has it, but that a rank keeps its number."""

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.use_dist, self.is_coordinator = False, True

    return init


def _for_a_part(real: Callable[..., Any]) -> Callable[..., Any]:
    """That a checkpoint is whole, of which only this rank's part is there. torch 2.11 says so by a truth value, 2.13 by
    a list of what is wrong."""

    def validate(*arguments: Any) -> Any:
        return True if isinstance(real(*arguments), bool) else []

    return validate


def _announcing_own(said: Callable[[str], None], real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def broadcast(full: dict[str, Any], local: dict[str, Any], *arguments: Any, **named: Any) -> None:
        if dist.get_rank() == 0:
            real(full, local, *arguments, **named)
            return
        said(ANNOUNCED)
        announced = {name: _describe(value) for name, value in local.items()}

        def receive(objects: list[Any], *_arguments: Any, **_named: Any) -> None:
            objects[0] = announced

        with upstream.patch_targets("state dict announced", replaced={_OBJECTS: receive}):
            real(full, local, *arguments, **named)

    return broadcast


def _describe(value: Any) -> Any:
    """As rank 0 has it in its message (torch 2.13, _state_dict_utils.py, `_broadcast_state_dict`)."""
    from torch.distributed._state_dict_utils import _TensorInfo

    if not torch.is_tensor(value):
        return value
    if value.dim() == 0:
        return torch.zeros((), dtype=value.dtype)
    return _TensorInfo(value.size(), value.dtype)
