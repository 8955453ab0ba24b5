"""Names what DistributedDataParallel allocates, buckets and messages, and the results of functional collectives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch

from planner import upstream
from planner.events import Category
from planner.roles.recording import RoleRecorder, in_region

_DDP = "torch.nn.parallel.distributed:DistributedDataParallel"
# A functional collective allocates what it returns (torch 2.13, torch/csrc/distributed/c10d/Functional.cpp), and
# the caller goes on with it: under tensor parallelism most of these tensors are kept for the backward.
_FUNCTIONAL = "torch:ops._c10d_functional"
_NAMES = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    # torch 2.13 has new names for some of them
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


def watch_ddp(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears of what all models allocate that are wrapped."""

    def begin_sync(real: Callable[..., Any]) -> Callable[..., Any]:
        """From here to the reducer the constructor verifies and broadcasts parameters and buffers."""

        def build(module: Any) -> Any:
            built = real(module)
            module._sync_in_planner = sync = ExitStack()
            sync.enter_context(recorder.region(Category.COMMUNICATION, "init_sync"))
            return built

        return build

    def make_buckets(real: Callable[..., Any]) -> Callable[..., Any]:
        def init_helper(module: Any, *arguments: Any, **named: Any) -> Any:
            sync = vars(module).pop("_sync_in_planner", None)
            if sync is not None:
                sync.close()
            with recorder.region(Category.BUCKET, "ddp"):
                result = real(module, *arguments, **named)
            module.reducer = _Reducer(module.reducer, recorder)
            return result

        return init_helper

    def register_hook(real: Callable[..., Any]) -> Callable[..., Any]:
        def register(module: Any, state: Any, hook: Callable[..., Any]) -> Any:
            return real(module, state, _named_hook(hook, recorder))

        return register

    wrapped: dict[str, upstream.Wrapper] = {
        f"{_DDP}._build_params_for_reducer": begin_sync,
        f"{_DDP}._ddp_init_helper": make_buckets,
        f"{_DDP}._sync_buffers": lambda real: in_region(real, recorder, Category.COMMUNICATION, "buffers"),
        f"{_DDP}.register_comm_hook": register_hook,
    }
    return upstream.patch_targets("ddp roles", wrapped=wrapped)


class _Reducer:
    """The reducer, whose rebuilt buckets are named."""

    def __init__(self, reducer: Any, recorder: RoleRecorder) -> None:
        self._reducer, self._recorder = reducer, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> Any:
        with self._recorder.region(Category.BUCKET, "ddp"):
            return self._reducer._rebuild_buckets()


def _named_hook(hook: Callable[..., Any], recorder: RoleRecorder) -> Callable[..., Any]:
    """The hook, whose tensors serve communication."""

    def named_hook(state: Any, bucket: Any) -> Any:
        with recorder.region(Category.COMMUNICATION, hook.__name__):
            return hook(state, bucket)

    # DDP wants no annotations or its own, and logs the qualified name.
    named_hook.__annotations__ = {}
    named_hook.__qualname__ = hook.__qualname__
    return named_hook


def watch_collectives(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears of every tensor that a functional collective returns."""
    wrapped: dict[str, upstream.Wrapper] = {
        f"{_FUNCTIONAL}.{name}": partial(_Operator, name=name, recorder=recorder) for name in _NAMES
    }
    return upstream.patch_targets("collectives", wrapped=wrapped)


class _Operator:
    """The operator, called inside a region; else itself."""

    def __init__(self, operator: Any, name: str, recorder: RoleRecorder) -> None:
        self._operator, self._name, self._recorder = operator, name, recorder

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # Dynamo reads this too, and would break its graph at the region
            return self._operator(*arguments, **named)
        with self._recorder.region(Category.COMMUNICATION, self._name):
            return self._operator(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)
