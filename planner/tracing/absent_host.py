"""Skips what a traced step does on the host with offloaded tensors, as no device sees it.

Parameters that rest on the host would take their real memory on the machine that plans, several times over: pinned
copies, clipped gradients, the optimizer's state. Each of these happens on the host alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from planner import upstream
from planner.training.host import RealHost


class AbsentHost:
    """A host of which nothing is filled, clipped or kept; see `planner.training.host.Host`."""

    def fill(self, parameter: Tensor) -> None:
        if parameter.device.type != "cpu":
            RealHost().fill(parameter)

    def select_clipped(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        return [each for each in parameters if each.device.type != "cpu"]

    def saving_activations(self) -> AbstractContextManager[Any]:
        return saved_tensors_hooks(_describe_saved, _empty_like)

    def keep(self, storage: torch.UntypedStorage) -> None:
        """Nothing is copied."""

    def give_back(self, storage: torch.UntypedStorage, content: None) -> None:
        """Nothing was kept."""


@contextmanager
def left_out() -> Iterator[AbsentHost]:
    """Inside, nothing that rests on the host is pinned by torch or stepped by an optimizer; gives the step's host."""
    dropped: list[tuple[Tensor, Tensor]] = []
    handles = (
        register_optimizer_step_pre_hook(partial(_drop_gradients_on_the_host, dropped)),
        register_optimizer_step_post_hook(partial(_give_back, dropped)),
    )
    target = "torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.reset_sharded_param"
    try:
        with upstream.patch_targets("host not pinned", wrapped={target: _without_pinning}):
            yield AbsentHost()
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


def _describe_saved(tensor: Tensor) -> tuple[torch.device, torch.Size, torch.dtype]:
    """As the device sees it, what was saved is gone."""
    return tensor.device, tensor.shape, tensor.dtype


def _empty_like(packed: tuple[torch.device, torch.Size, torch.dtype]) -> Tensor:
    """It comes back contiguous, in memory of its own."""
    device, shape, dtype = packed
    return torch.empty(shape, dtype=dtype, device=device)


def _without_pinning(real: Any) -> Any:
    def reset(self: Any) -> None:
        with upstream.patch_targets("said to be pinned", replaced={"torch:Tensor.is_pinned": lambda _tensor: True}):
            real(self)

    return reset
