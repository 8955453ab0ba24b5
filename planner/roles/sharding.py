"""Names what FullyShardedDataParallel and fully_shard allocate: parameters, gathered or not, gradients, messages."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from planner import upstream
from planner.events import Category
from planner.roles.recording import RoleRecorder, in_region, surrounded
from planner.training.wraps import fsdp2

_HANDLE = "torch.distributed.fsdp._flat_param:FlatParamHandle"
_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_GROUP = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam"
_COMMUNICATING = ("foreach_all_gather", "foreach_reduce")
"""Functions that allocate what is sent and received (torch 2.13, fsdp/_fully_shard/_fsdp_collectives.py)."""


def path_in_job(name: str) -> str:
    """The path of a module or a parameter as it is before FullyShardedDataParallel wraps what is around it."""
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")


def watch_flat_units(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears which storages are flat parameters, gathered, and their gradients."""
    whole_dtype: torch.dtype | None = None
    """Of the gradient that is being reduced, as autograd made it."""
    names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def assign(handle: Any, tensor: Tensor | None, category: Category, what: str = "") -> None:
        if tensor is not None:
            recorder.assign(tensor, category, f"{names.get(handle, '_flat_param')} {what}".strip())

    def name_units(_root: Any, module: nn.Module) -> None:
        for path, unit in module.named_modules():
            if isinstance(unit, FullyShardedDataParallel) and unit._handle is not None:
                names[unit._handle] = f"{path_in_job(path)}._flat_param".removeprefix(".")
                assign(unit._handle, unit._handle.flat_param, Category.PARAMETER)

    def name_gathered(gathered: Any, handle: Any) -> None:
        assign(handle, gathered, Category.PARAMETER, "(gathered)")

    def name_lowered(_result: Any, handle: Any) -> None:
        category = Category.COMMUNICATION if handle.uses_sharded_strategy else Category.PARAMETER
        assign(handle, handle.flat_param._mp_shard, category, "(low precision)")

    def name_whole_gradient(_state: Any, handle: Any, *_others: Any) -> None:
        nonlocal whole_dtype
        if (gradient := handle.flat_param.grad) is not None:
            whole_dtype = gradient.dtype
            assign(handle, gradient, Category.GRADIENT, "(whole)")

    def sending(function: Callable[..., Any]) -> Callable[..., Any]:
        def make_tensors(state: Any, gradient: Tensor) -> Any:
            if gradient.dtype != whole_dtype:  # a copy in which it is reduced
                recorder.assign(gradient, Category.COMMUNICATION, "reduce_gradient")
            with recorder.region(Category.COMMUNICATION, "reduce_gradient"):
                return function(state, gradient)

        return make_tensors

    def name_accumulated(kept: Any, _state: Any, handle: Any, *_others: Any) -> None:
        assign(handle, kept, Category.GRADIENT)

    def name_reduced(_result: Any, _state: Any, handle: Any) -> None:
        assign(handle, handle.flat_param.grad, Category.GRADIENT)

    wrapped: dict[str, upstream.Wrapper] = {
        f"{_RUNTIME}:_share_state_and_init_handle_attrs": partial(surrounded, before=name_units),
        f"{_RUNTIME}:_post_backward_hook": partial(surrounded, before=name_whole_gradient),
        f"{_RUNTIME}:_get_reduce_scatter_tensors": sending,
        f"{_RUNTIME}:_accumulate_sharded_grad": partial(surrounded, after=name_accumulated),
        f"{_RUNTIME}:_reduce_grad_no_shard": partial(surrounded, after=name_reduced),
        f"{_HANDLE}._alloc_padded_unsharded_flat_param": partial(surrounded, after=name_gathered),
        f"{_HANDLE}._use_low_precision_shard": partial(surrounded, after=name_lowered),
    }
    return upstream.patch_targets("fsdp1 roles", wrapped=wrapped)


def watch_fully_shard(recorder: RoleRecorder) -> AbstractContextManager[None]:
    """Inside, the recorder hears which storages fully_shard takes for communication and for whole parameters."""

    def communicating(function: Callable[..., Any]) -> Callable[..., Any]:
        return in_region(function, recorder, Category.COMMUNICATION, function.__name__)

    def name_gathered(_result: Any, param: Any, *_arguments: Any) -> None:
        for output in param.all_gather_outputs:
            recorder.assign(output, Category.PARAMETER, f"{param._param_fqn or ''} (gathered)".strip())

    def name_resharded(_result: Any, param: Any) -> None:
        kept = param._sharded_post_forward_param_data
        recorder.assign(kept, Category.PARAMETER, f"{param._param_fqn or ''} (resharded)".strip())

    wrapped: dict[str, upstream.Wrapper] = {
        **{f"{_GROUP}:{name}": communicating for name in _COMMUNICATING},
        f"{_PARAMETER}.alloc_all_gather_outputs": partial(surrounded, after=name_gathered),
        f"{_PARAMETER}.to_sharded_post_forward": partial(surrounded, after=name_resharded),
    }
    return upstream.patch_targets("fsdp roles", wrapped=wrapped)


def assign_whole_gradients(model: nn.Module, recorder: RoleRecorder) -> None:
    """Gradients of whole parameters, which accumulate there until fully_shard reduces them: those of a pipeline's
    stage."""
    for param in fsdp2.sharded_params(model):
        whole = getattr(param, "_unsharded_param", None)
        for gradient in (param.unsharded_accumulated_grad, None if whole is None else whole.grad):
            if gradient is not None:
                recorder.assign(gradient, Category.GRADIENT, f"{param._param_fqn or ''} (whole)".strip())
