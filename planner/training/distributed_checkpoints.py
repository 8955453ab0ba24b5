"""Saves and loads checkpoints as programs do: state-dict functions, torch.distributed.checkpoint, transformers."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
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

from planner import upstream
from planner.events import Category, Phase
from planner.host_events import HostBlock, HostCategory
from planner.job import schema
from planner.training import absent_peers
from planner.training.checkpoints import Loading
from planner.training.host import CheckpointFiles, Host
from planner.training.observers import NullObserver, Observer
from planner.upstream import torch_releases

# What is gathered, copied and staged is torch's own work. Where files go the step's host decides. What async_save has
# staged waits until the checkpoint after it, or until the end of the training: an upload that is still under way then
# is waited for, as programs do (torchtitan, components/checkpoint.py).
_ITERATE = "torch.distributed._state_dict_utils:_iterate_state_dict"


class CheckpointSaver:
    """Saves the checkpoints of one rank."""

    def __init__(
        self,
        spec: schema.CheckpointSave,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        observer: Observer,
        host: Host,
    ) -> None:
        self._spec, self._model, self._optimizer = spec, model, optimizer
        self._observer, self._host = observer, host
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._finish_upload: Callable[[], None] | None = None

    def save(self, iteration: int) -> None:
        """One checkpoint."""
        self._observer.mark(Phase.CHECKPOINT_SAVE, iteration)
        self.finish()
        with (
            self._host.checkpoint_files() as files,
            _telling_whole(self._observer),
            absent_peers.naming_devices(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)
            self._save(files)

    def finish(self) -> None:
        """Wait for what is still being written, and give up what was staged for it. Raises what stopped its thread."""
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
        """Stages a checkpoint, which a thread writes; what is returned waits for it, and gives up what was staged."""
        torch_releases.require("checkpoints saved in the background", place="train.checkpoint_save.kind")
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        class KeepingStager(DefaultStager):
            """Holds what it has staged, which else the thread that writes would be the last to give up."""

            staged: Any = None

            def stage(self, state_dict: dict[str, Any], **options: Any) -> Any:
                self.staged = super().stage(state_dict, **options)
                return self.staged

        pinned = self._spec.pinned and torch.cuda.is_available()
        # Shared memory is for the process that writes, where it is not a thread.
        options = StagingOptions(
            use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned
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


@contextmanager
def _telling_whole(observer: Observer) -> Iterator[None]:
    """Inside, the observer hears of every whole tensor that torch gathers into a state dict."""
    if isinstance(observer, NullObserver):
        yield
        return

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(given: Any, *arguments: Any, **named: Any) -> Any:
            result = real(given, *arguments, **named)
            if isinstance(given, DTensor) and isinstance(result, Tensor) and not isinstance(result, DTensor):
                observer.assign(result, Category.OTHER, "checkpoint")
            return result

        return iterate

    with upstream.patch_targets("state dicts told", wrapped={_ITERATE: wrap}):
        yield


def _full(loading: Loading) -> Any:
    """As a program that loads a whole file on each rank, or on rank 0, which sends it."""
    broadcast = loading.spec.broadcast_from_rank0
    reads = not broadcast or dist.get_rank() == 0
    state: dict[str, Any] = {"model": loading.model_state() if reads else {}}
    if loading.spec.optimizer:
        state["optimizer"] = loading.optimizer_state(by_names=True) if reads else {}
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
