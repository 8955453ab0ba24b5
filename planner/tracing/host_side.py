"""What a traced program does on the host with what it offloads there: left out, for no device sees it.

Parameters that rest on the host would take their real memory on the machine that plans, several times over: pinned
copies, clipped gradients, the optimizer's state. Each of these happens on the host alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from planner.training import activation_offload, clipping, materialize
from planner.training.wraps import deepspeed_zero


@contextmanager
def left_out() -> Iterator[None]:
    """Inside, nothing on the host is filled, pinned, clipped or stepped."""
    real_clip = clipping.clip

    def clip(parameters: Any, limit: float) -> None:
        on_device = [each for each in parameters if each.device.type != "cpu"]
        real_clip(on_device, limit)

    dropped: list[tuple[Tensor, Tensor]] = []
    handles = (
        register_optimizer_step_pre_hook(partial(_drop_gradients_on_the_host, dropped)),
        register_optimizer_step_post_hook(partial(_give_back, dropped)),
    )
    try:
        with (
            mock.patch.object(clipping, "clip", clip),
            mock.patch.object(materialize, "fill", _fill_on_devices),
            mock.patch.object(deepspeed_zero, "on_host", _nothing),
            mock.patch.object(deepspeed_zero, "host_tensor", _not_filled),
            mock.patch.object(activation_offload, "save_on_cpu", _SavedWithoutAHost),
            mock.patch.object(_fsdp_param.FSDPParam, "reset_sharded_param", _without_pinning),
        ):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _drop_gradients_on_the_host(dropped: list[tuple[Tensor, Tensor]], optimizer: Optimizer, *_arguments: Any) -> None:
    """An optimizer passes over parameters without a gradient: it takes no state for them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.device.type == "cpu" and parameter.grad is not None:
                dropped.append((parameter, parameter.grad))
                parameter.grad = None


def _give_back(dropped: list[tuple[Tensor, Tensor]], *_arguments: Any) -> None:
    """DeepSpeed keeps its gradients on the host for the next step."""
    for parameter, grad in dropped:
        parameter.grad = grad
    dropped.clear()


class _SavedWithoutAHost(saved_tensors_hooks):
    """save_on_cpu as the device sees it: what was saved is gone, and comes back contiguous in memory of its own."""

    def __init__(self, **_options: Any) -> None:
        super().__init__(_gone, _back)


def _gone(tensor: Tensor) -> tuple[torch.device, torch.Size, torch.dtype]:
    return tensor.device, tensor.shape, tensor.dtype


def _back(packed: tuple[torch.device, torch.Size, torch.dtype]) -> Tensor:
    device, shape, dtype = packed
    return torch.empty(shape, dtype=dtype, device=device)


def _nothing(_work: Callable[[], None]) -> None: ...


def _not_filled(elements: int, dtype: torch.dtype, *, pinned: bool) -> Tensor:  # noqa: ARG001
    return torch.empty(elements, dtype=dtype, device="cpu")


_real_fill = materialize.fill


def _fill_on_devices(parameter: Tensor) -> None:
    if parameter.device.type != "cpu":
        _real_fill(parameter)


_real_reset: Any = _fsdp_param.FSDPParam.reset_sharded_param


def _without_pinning(self: Any) -> None:
    with mock.patch.object(Tensor, "is_pinned", return_value=True):
        _real_reset(self)
