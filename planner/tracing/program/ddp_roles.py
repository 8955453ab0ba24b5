"""Says what DistributedDataParallel allocates: its buckets, and what is sent by its syncs and by its hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from planner import upstream
from planner.events import Category
from planner.paper.recorder import Recorder
from planner.training.wraps.ddp import ObservedReducer, compression_tensors, observe_hook

_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"


class DdpRoles:
    """Of all models that a program wraps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._compressions: list[PowerSGDState] = []

    def watch(self) -> AbstractContextManager[None]:
        """Inside, the recorder hears of what DDP allocates."""
        wrapped = {
            f"{_DDP}._build_params_for_reducer": self._begin_sync,
            f"{_DDP}._ddp_init_helper": self._make_buckets,
            f"{_DDP}._sync_buffers": self._send_buffers,
            f"{_DDP}.register_comm_hook": self._register_hook,
        }
        return upstream.patch_targets("ddp roles", wrapped=wrapped)

    def assign_compression(self) -> None:
        """What hooks keep from one iteration to the next: PowerSGD its factors and errors."""
        for state in self._compressions:
            for name, tensor in compression_tensors(state):
                self._recorder.assign(tensor, Category.COMMUNICATION, name)

    def _begin_sync(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """From here to the reducer the constructor verifies and broadcasts parameters and buffers."""

        def build(module: Any) -> Any:
            built = real(module)
            module._sync_in_planner = sync = ExitStack()
            sync.enter_context(self._recorder.region(Category.COMMUNICATION, "init_sync"))
            return built

        return build

    def _make_buckets(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def init_helper(module: Any, *arguments: Any, **named: Any) -> Any:
            sync = vars(module).pop("_sync_in_planner", None)
            if sync is not None:
                sync.close()
            with self._recorder.region(Category.BUCKET, "ddp"):
                result = real(module, *arguments, **named)
            module.reducer = ObservedReducer(module.reducer, self._recorder)
            return result

        return init_helper

    def _send_buffers(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def sync(module: Any) -> Any:
            with self._recorder.region(Category.COMMUNICATION, "buffers"):
                return real(module)

        return sync

    def _register_hook(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def register(module: Any, state: Any, hook: Callable[..., Any]) -> Any:
            if isinstance(state, PowerSGDState):
                self._compressions.append(state)
            return real(module, state, observe_hook(hook, self._recorder))

        return register
