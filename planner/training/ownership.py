"""Tells an observer what the tensors of a training step are for, by identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.events import Category
from planner.training import optimizers
from planner.training.observer import NullObserver, Observer


def tell_parameters(model: nn.Module, observer: Observer) -> None:
    """Parameters and buffers, each under its name in the model."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        observer.assign(tensor, Category.PARAMETER, name)


def tell_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, observer: Observer) -> None:
    """Every tensor that the optimizer keeps, under its parameter's name; some (`step`) may be on the host."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states = [each for kept in optimizers.with_state(optimizer) for each in kept.state.items()]
    for parameter, state in states:
        for key, value in state.items():
            if isinstance(value, Tensor):
                observer.assign(value, Category.OPTIMIZER_STATE, f"{names.get(id(parameter), '')}.{key}")


@contextmanager
def telling_gradients(model: nn.Module, observer: Observer, *, bucket_views: bool) -> Iterator[None]:
    """Inside, each gradient is told when it has been accumulated; with a silent observer no hook is installed.

    `bucket_views`: under DDP's `gradient_as_bucket_view` a gradient that is a view already lies in its bucket, whose
    storage stays a bucket. It is none when it has just been born: DDP moves it after it was accumulated.
    """
    if isinstance(observer, NullObserver):
        yield
        return

    def tell(name: str, parameter: Tensor) -> None:
        grad = parameter.grad
        if grad is not None and not (bucket_views and grad._is_view()):
            observer.assign(grad, Category.GRADIENT, name)

    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    handles = [_after_accumulation(parameter, partial(tell, name)) for name, parameter in trained]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tell_gradients(model: nn.Module, observer: Observer) -> None:
    """Sharded parameters and their gradients, of which no hook hears: fully_shard hands a gradient over when the
    backward ends, and in the first forward it takes new memory for a shard that is shorter than the others."""
    if isinstance(observer, NullObserver):
        return
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        observer.assign(parameter, Category.PARAMETER, name)
        if parameter.grad is not None:
            observer.assign(parameter.grad, Category.GRADIENT, name)


def tell_all_gradients(model: nn.Module, observer: Observer) -> None:
    """Those that torch.distributed.pipelining adds up by itself when it splits a backward (torch 2.13,
    `_backward.py`, stage_backward_weight): no hook hears of them."""
    if isinstance(observer, NullObserver):
        return
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            observer.assign(parameter.grad, Category.GRADIENT, name)


def _after_accumulation(parameter: Tensor, tell: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(tell)
