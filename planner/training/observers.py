"""Protocols of a step's observers, and what tells them phases, collectives and what tensors are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FlatParameter
from torch.distributed.tensor import DTensor

from planner import upstream
from planner.events import Category, Phase
from planner.training import optimizers


class Observer(Protocol):
    """What the step tells while it runs. It tells by identity of storages, never by value."""

    def mark(self, phase: Phase, iteration: int) -> None:
        """A phase begins; iterations count from 1, 0 is before the first."""

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        """The storage of this tensor belongs to `category` from here on."""

    def region(self, category: Category, name: str = "") -> AbstractContextManager[None]:
        """Storages born inside and alive at its end belong to `category`. Regions never nest."""


@runtime_checkable
class ModuleFollower(Protocol):
    """An observer that also wants to know which module runs; see `blocks.follow`."""

    follows_modules: bool

    def enter(self, path: str) -> None:
        """The forward of the module at `path` begins (the root is the empty path)."""

    def leave(self) -> None:
        """The module entered last has ended, also when it ended with an error."""


class NullObserver:
    """Watches nothing: with it the step installs no hook at all."""

    def mark(self, phase: Phase, iteration: int) -> None: ...

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None: ...

    def region(self, category: Category, name: str = "") -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()


def unless_silent(observer: Observer, hooks: AbstractContextManager[None]) -> AbstractContextManager[None]:
    """These hooks; none with an observer that watches nothing."""
    return nullcontext() if isinstance(observer, NullObserver) else hooks


# A functional collective allocates what it returns (torch 2.13, torch/csrc/distributed/c10d/Functional.cpp), and
# the caller goes on with it: under tensor parallelism most of these tensors are kept for the backward.
_FUNCTIONAL = "torch:ops._c10d_functional"
_NAMES = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    # torch 2.13 has new names for some of them
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


def observe_collectives(observer: Observer) -> AbstractContextManager[None]:
    """Inside, the observer hears of every tensor that a functional collective returns."""
    wrapped: dict[str, upstream.Wrapper] = {
        f"{_FUNCTIONAL}.{name}": partial(_ObservedOperator, name=name, observer=observer) for name in _NAMES
    }
    return unless_silent(observer, upstream.patch_targets("collectives", wrapped=wrapped))


class _ObservedOperator:
    """The operator, called inside a region; else itself."""

    def __init__(self, operator: Any, name: str, observer: Observer) -> None:
        self._operator, self._name, self._observer = operator, name, observer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._observer.region(Category.COMMUNICATION, self._name):
            return self._operator(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)


def in_region(function: Callable[..., Any], observer: Observer, category: Category, name: str) -> Callable[..., Any]:
    """The function, called inside a region of the observer."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with observer.region(category, name):
            return function(*arguments, **named)

    return call


def surrounded(
    method: Callable[..., Any],
    *,
    before: Callable[..., object] | None = None,
    after: Callable[..., object] | None = None,
) -> Callable[..., Any]:
    """The method; `before` is called with its arguments, `after` with what it has returned and its arguments."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(*arguments, **named)
        result = method(*arguments, **named)
        if after is not None:
            after(result, *arguments, **named)
        return result

    return call


def path_in_job(name: str) -> str:
    """The path of a module or a parameter as it is before FullyShardedDataParallel wraps what is around it."""
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")


def tell_parameters(model: nn.Module, observer: Observer, prefix: str = "") -> None:
    """Parameters and buffers, each under its name in the model behind the prefix."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        observer.assign(tensor, Category.PARAMETER, prefix + path_in_job(name))


def tell_optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module, observer: Observer) -> None:
    """Every tensor that the optimizer keeps, under its parameter's name; some (`step`) may be on the host."""
    names = {id(parameter): path_in_job(name) for name, parameter in model.named_parameters()}
    for kept in optimizers.stateful_optimizers(optimizer):
        for parameter, state in kept.state.items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    observer.assign(value, Category.OPTIMIZER_STATE, f"{names.get(id(parameter), '')}.{key}")


@contextmanager
def tell_accumulated_gradients(model: nn.Module, observer: Observer, *, bucket_views: bool) -> Iterator[None]:
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

    handles = [
        parameter.register_post_accumulate_grad_hook(partial(tell, path_in_job(name)))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not isinstance(parameter, FlatParameter)  # told whole, and as a shard (fsdp1)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tell_gradients(model: nn.Module, observer: Observer) -> None:
    """Sharded parameters and their gradients, of which no hook hears: fully_shard hands a gradient over when the
    backward ends, and in the first forward it takes new memory for a shard that is shorter than the others."""
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor):
            continue
        observer.assign(parameter, Category.PARAMETER, name)
        if parameter.grad is not None:
            observer.assign(parameter.grad, Category.GRADIENT, name)


def tell_all_gradients(model: nn.Module, observer: Observer) -> None:
    """Those that torch.distributed.pipelining adds up by itself when it splits a backward (torch 2.13,
    `_backward.py`, stage_backward_weight): no hook hears of them."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            observer.assign(parameter.grad, Category.GRADIENT, name)
