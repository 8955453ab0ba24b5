"""Saves and loads checkpoints as programs do: state-dict functions, torch.distributed.checkpoint, transformers."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan, create_default_local_save_plan
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
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer

from planner.errors import SpecError
from planner.events import Phase
from planner.job import schema
from planner.training import absent_peers
from planner.training.checkpoint_files import CheckpointFiles
from planner.training.optimizers import copy_to_meta
from planner.training.phases import named_phase
from planner.upstream import torch_releases

# What is gathered, copied and staged is torch's own work. Where files go the step's host decides. What async_save has
# staged waits until the checkpoint after it, or until the end of the training: an upload that is still under way then
# is waited for, as programs do (torchtitan, components/checkpoint.py).


class CheckpointSaver:
    """Saves the checkpoints of one rank."""

    def __init__(self, spec: schema.CheckpointSave, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._spec, self._model, self._optimizer = spec, model, optimizer
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._finish_upload: Callable[[], None] | None = None

    def save(self) -> None:
        self.finish()
        with (
            named_phase(Phase.CHECKPOINT_SAVE),
            CheckpointFiles() as files,
            absent_peers.naming_devices(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)
            self._save(files)

    def finish(self) -> None:
        """Wait for what is still being written, and free what was staged for it. Raises what stopped its thread."""
        finish, self._finish_upload = self._finish_upload, None
        if finish is not None:
            finish()

    def _save(self, files: CheckpointFiles) -> None:
        match self._spec.kind:
            case "full_state_dict":
                state = self._state(full_state_dict=True, cpu_offload=self._spec.cpu_offload)
                if self._rank == 0:
                    files.save(state)
            case "sharded_state_dict":
                files.save(self._state(cpu_offload=self._spec.cpu_offload))
            case "dcp":
                save(self._state(cpu_offload=self._spec.cpu_offload), storage_writer=files.writer())
            case "dcp_async":
                self._finish_upload = self._begin_upload(files)
            case "huggingface":
                self._save_pretrained(files)
            case unknown:
                raise KeyError(unknown)

    def _begin_upload(self, files: CheckpointFiles) -> Callable[[], None]:
        """Stages a checkpoint, which a thread writes; what is returned waits for it and frees what was staged."""
        torch_releases.require("checkpoints saved in the background", place="train.checkpoint_save.kind")
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        class KeepingStager(DefaultStager):
            """Holds what it has staged, which the writing thread would otherwise be the last to free."""

            staged: Any = None

            def stage(self, state_dict: dict[str, Any], **options: Any) -> Any:
                self.staged = super().stage(state_dict, **options)
                return self.staged

        # Shared memory is for the process that writes, where it is not a thread.
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        stager = KeepingStager(options)
        group = dist.new_group() if dist.is_initialized() and dist.get_world_size() > 1 else None
        before = set(threading.enumerate())
        written = async_save(
            self._state(), storage_writer=files.background_writer(), async_stager=stager, process_group=group
        )
        assert isinstance(written, Future)
        threads = [thread for thread in threading.enumerate() if thread not in before]
        close = files.hand_over()

        def finish() -> None:
            written.result()
            for thread in threads:  # each lets go of what was staged when it ends
                thread.join()
            stager.close()
            stager.staged = None
            if group is not None:
                dist.destroy_process_group(group)
            close()

        return finish

    def _save_pretrained(self, files: CheckpointFiles) -> None:
        state = None
        if any(isinstance(parameter, DTensor) for parameter in self._model.parameters()):
            # As accelerate 1.x asks for it (Accelerator.get_state_dict).
            options = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
            state = get_model_state_dict(self._model, options=options)
        if self._rank == 0:
            files.save_pretrained(self._model, state)

    def _state(self, *, full_state_dict: bool = False, cpu_offload: bool = False) -> dict[str, Any]:
        options = StateDictOptions(full_state_dict=full_state_dict, cpu_offload=cpu_offload)
        if not self._spec.optimizer:
            return {"model": get_model_state_dict(self._model, options=options)}
        model, optimizer = get_state_dict(self._model, self._optimizer, options=options)
        return {"model": model, "optimizer": optimizer}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What is loaded into what."""

    spec: schema.CheckpointLoad
    model: nn.Module
    optimizer: torch.optim.Optimizer
    device: torch.device

    @property
    def _on_device(self) -> bool:
        """Whether the checkpoint's tensors are put on the device: on a CPU there is no other place."""
        return self.spec.map_location == "device" or self.device.type == "cpu"

    def _tensor(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """One that the file has, read into the host's memory."""
        read = torch.zeros(shape, dtype=dtype, device="cpu")
        return read.to(self.device) if self._on_device else read

    def model_state(self) -> dict[str, Tensor]:
        """The model's state dict as it comes from the file, whole tensors."""
        state: dict[str, Tensor] = {}
        copies: dict[tuple[int, torch.Size], Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            # A checkpoint keeps shared tensors shared: tied embeddings are loaded once.
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            key = local.untyped_storage()._cdata, tensor.shape
            if key not in copies:
                copies[key] = self._copy(tensor)
            state[name] = copies[key]
        return state

    def _copy(self, tensor: Tensor) -> Tensor:
        copy = self._tensor(tensor.shape, tensor.dtype)
        if self._on_device and not isinstance(tensor, DTensor):
            copy.copy_(tensor.detach())
        return copy

    def optimizer_state(self, *, by_names: bool) -> dict[str, Any]:
        """As `optimizer.state_dict()` gives it, parameters by their numbers; or `by_names` as
        `get_optimizer_state_dict` does. Tensors are whole. Raises SpecError for an optimizer that does not step on the
        meta device."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        named = self.model.named_parameters() if by_names else enumerate(parameters)
        keys: dict[int, Any] = {id(parameter): key for key, parameter in named}
        state = {
            keys[id(parameter)]: {name: self._loaded(value) for name, value in values.items()}
            for parameter, values in zip(parameters, _first_states(self.optimizer), strict=True)
            if values
        }
        groups = [
            {**group, "params": [keys[id(parameter)] for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]
        return {"state": state, "param_groups": groups}

    def _loaded(self, value: Any) -> Any:
        """A tensor from the meta device comes from a file; one of the host (a count of steps) is as it is."""
        if not isinstance(value, Tensor) or value.device.type != "meta":
            return value
        return self._tensor(value.shape, value.dtype)


def _first_states(optimizer: Optimizer) -> list[dict[str, Any]]:
    """For each parameter, whole, what a step of a twin on the meta device makes."""
    shapes = {parameter: parameter.shape for group in optimizer.param_groups for parameter in group["params"]}
    twin = copy_to_meta(optimizer, shapes)
    try:
        twin.step()
    except Exception as refusal:
        raise SpecError(
            f"the state that {type(optimizer).__name__} loads is not known: it does not step without a device"
            f" ({type(refusal).__name__}: {str(refusal).splitlines()[0] if str(refusal) else ''})",
            allowed="an optimizer of torch.optim",
            remedy="optimizer: false loads the model alone",
            place="train.checkpoint_load.optimizer",
        ) from refusal
    return [dict(twin.state[parameter]) for group in twin.param_groups for parameter in group["params"]]


def _load_state_dict(loading: Loading) -> None:
    """As a program that calls torch.load and load_state_dict of model and optimizer."""
    if any(isinstance(tensor, DTensor) for tensor in loading.model.state_dict().values()):
        _load_shards(loading)
        return
    state: dict[str, Any] = {"model": loading.model_state()}
    if loading.spec.optimizer:
        state["optimizer"] = loading.optimizer_state(by_names=False)
    loading.model.load_state_dict(state["model"])
    if loading.spec.optimizer:
        loading.optimizer.load_state_dict(state["optimizer"])


def _load_shards(loading: Loading) -> None:
    """As torch.distributed.checkpoint loads a sharded model: each rank reads its own shards on the host and copies them
    into place, so that the device takes nothing."""
    if loading.spec.map_location == "device":
        raise SpecError(
            "a sharded model does not take a whole state dict on the device",
            allowed="cpu: each rank reads its own shards, as torch.distributed.checkpoint does",
            remedy="kind: full_state_dict takes a whole one, on the device or on the host",
            place="train.checkpoint_load.map_location",
        )
    with torch.no_grad():
        for tensor in loading.model.state_dict().values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            local.copy_(torch.zeros(local.shape, dtype=local.dtype, device="cpu"))


def _load_full(loading: Loading) -> None:
    """As a program that loads a whole file on each rank, or on rank 0, which sends it."""
    broadcast = loading.spec.kind == "full_state_dict_from_rank0"
    reads = not broadcast or dist.get_rank() == 0
    state: dict[str, Any] = {"model": loading.model_state() if reads else {}}
    if loading.spec.optimizer:
        state["optimizer"] = loading.optimizer_state(by_names=True) if reads else {}
    _set(loading, state, StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast))


def _load_distributed(loading: Loading) -> None:
    """As a program that calls torch.distributed.checkpoint.load into the state dicts of model and optimizer."""
    state: dict[str, Any] = {}
    if loading.spec.optimizer:
        state["model"], state["optimizer"] = get_state_dict(loading.model, loading.optimizer)
    else:
        state["model"] = get_model_state_dict(loading.model)
    load(state, storage_reader=ZerosReader(state))
    _set(loading, state, StateDictOptions())


def _set(loading: Loading, state: dict[str, Any], options: StateDictOptions) -> None:
    # One after the other: set_state_dict leaves the model out on ranks that have nothing to give (torch 2.13).
    set_model_state_dict(loading.model, state["model"], options=options)
    if loading.spec.optimizer:
        set_optimizer_state_dict(loading.model, loading.optimizer, state["optimizer"], options=options)


LOADS: dict[str, Callable[[Loading], None]] = {
    "state_dict": _load_state_dict,
    "full_state_dict": _load_full,
    "full_state_dict_from_rank0": _load_full,
    "dcp": _load_distributed,
}
"""By `train.checkpoint_load.kind`: loads a checkpoint as large as the model, or the model and its optimizer."""


class ZerosReader(StorageReader):
    """Reads zeros where torch's FileSystemReader reads files: one item after the other, on the host.

    A rank finds what its own state dict has.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._flat, _ = flatten_state_dict(state)

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
            target.copy_(torch.zeros(target.shape, dtype=target.dtype))
            planner.commit_tensor(item, target)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True
