"""Loads checkpoints by torch.distributed.checkpoint: set_state_dict of a whole state dict, or its own format."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import (
    create_default_global_save_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader

from planner.host_events import HostBlock, HostCategory
from planner.training import optimizer_checkpoints
from planner.training.checkpoint_reading import Loading
from planner.training.host import Host


def _full(loading: Loading) -> Any:
    """As a program that loads a whole file on each rank, or on rank 0, which sends it."""
    broadcast = loading.spec.broadcast_from_rank0
    reads = not broadcast or dist.get_rank() == 0
    state: dict[str, Any] = {"model": loading.model_state() if reads else {}}
    if loading.spec.optimizer:
        state["optimizer"] = optimizer_checkpoints.by_names(loading) if reads else {}
    with loading.held(state):
        _set(loading, state, StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast))
    return state


def _distributed(loading: Loading) -> Any:
    """As a program that calls torch.distributed.checkpoint.load into the state dicts of model and optimizer."""
    state: dict[str, Any] = {}
    if loading.spec.optimizer:
        state["model"], state["optimizer"] = get_state_dict(loading.model, loading.optimizer)
    else:
        state["model"] = get_model_state_dict(loading.model)
    load(state, storage_reader=ZerosReader(state, loading.host))
    _set(loading, state, StateDictOptions())
    return state


def _set(loading: Loading, state: dict[str, Any], options: StateDictOptions) -> None:
    # One after the other: set_state_dict leaves the model out on ranks that have nothing to give (torch 2.13).
    set_model_state_dict(loading.model, state["model"], options=options)
    if loading.spec.optimizer:
        set_optimizer_state_dict(loading.model, loading.optimizer, state["optimizer"], options=options)


LOADS: dict[str, Callable[[Loading], Any]] = {"full_state_dict": _full, "dcp": _distributed}


class ZerosReader(StorageReader):
    """Reads zeros where torch's FileSystemReader reads files: one item after the other, on the host.

    A rank finds what its own state dict has.
    """

    def __init__(self, state: dict[str, Any], host: Host) -> None:
        self._flat, _ = flatten_state_dict(state)
        self._host = host

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def read_metadata(self, *_arguments: Any, **_named: Any) -> Metadata:
        plan = create_default_local_save_plan(self._flat, is_coordinator=True)
        _, metadata = create_default_global_save_plan([plan])
        return metadata

    def set_up_storage_reader(self, *_arguments: Any, **_named: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                content = io.BytesIO()
                torch.save(self._flat[item.dest_index.fqn], content)
                content.seek(0)
                planner.load_bytes(item, content)
                continue
            target = planner.resolve_tensor(item).detach()
            with self._host.hold(HostBlock(bytes=target.nbytes, category=HostCategory.CHECKPOINT, name="shard")):
                target.copy_(torch.zeros((), dtype=target.dtype).expand(target.shape))
            planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True
