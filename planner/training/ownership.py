"""What the tensors of a training step are for, told to an observer by identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from planner.events import Category
from planner.training.observer import Observer, Silent


def tell_parameters(model: nn.Module, observer: Observer) -> None:
    """Parameters and buffers, each under its name in the model."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        observer.assign(tensor, Category.PARAMETER, name)


def tell_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, observer: Observer) -> None:
    """Every tensor that the optimizer keeps, under its parameter's name; some (`step`) may be on the host."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                observer.assign(value, Category.OPTIMIZER_STATE, f"{names.get(id(parameter), '')}.{key}")


class Gradients:
    """Tells each gradient when it has been accumulated, except where it already is a view of a bucket."""

    def __init__(self, model: nn.Module, observer: Observer) -> None:
        self._model, self._observer = model, observer
        self._in_buckets: frozenset[int] = frozenset()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Inside, gradients are told; with a silent observer no hook is installed."""
        if isinstance(self._observer, Silent):
            yield
            return
        trained = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
        handles = [_after_accumulation(p, partial(self._tell, name)) for name, p in trained]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def moved_into_buckets(self) -> None:
        """The reducer has made every gradient a view of its bucket: from here on their storages are buckets."""
        grads = (parameter.grad for parameter in self._model.parameters())
        self._in_buckets = frozenset(_storage(grad) for grad in grads if grad is not None)

    def _tell(self, name: str, parameter: Tensor) -> None:
        grad = parameter.grad
        if grad is not None and _storage(grad) not in self._in_buckets:
            self._observer.assign(grad, Category.GRADIENT, name)


def _after_accumulation(parameter: Tensor, tell: Callable[[Tensor], None]) -> Any:
    return parameter.register_post_accumulate_grad_hook(tell)  # type: ignore[no-untyped-call]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
