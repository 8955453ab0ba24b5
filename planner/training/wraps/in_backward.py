"""The optimizer in the backward: each parameter is updated, and its gradient dropped, as soon as it is accumulated.

As torchtune and PyTorch's own tutorial have it: one optimizer for each parameter, stepped by a hook that
`register_post_accumulate_grad_hook` installs. The loop's own step and zero_grad have nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer


class InBackwardOptimizer(Optimizer):
    """What the loop holds: the optimizers of all parameters."""

    def __init__(self, trained: list[nn.Parameter], inside: dict[Tensor, Optimizer]) -> None:
        super().__init__(trained, {})
        self.inside = inside

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none


def each_alone(kind: Any, trained: list[nn.Parameter], arguments: dict[str, Any]) -> InBackwardOptimizer:
    """An optimizer of this kind for each parameter."""
    return InBackwardOptimizer(trained, {each: kind([each], **arguments) for each in trained})


@contextmanager
def stepping(optimizer: Optimizer, born: Callable[[Optimizer], None]) -> Iterator[None]:
    """Inside, gradients are used up when they are accumulated, after whatever hooks were installed before.

    `born` hears of each optimizer that has just made its state: fully_shard steps within its reduction, whose
    communication the state is not.
    """
    if not isinstance(optimizer, InBackwardOptimizer):
        yield
        return

    def use_up(parameter: Tensor) -> None:
        inside = optimizer.inside[parameter]
        first = not inside.state
        inside.step()
        inside.zero_grad()
        if first:
            born(inside)

    handles = [each.register_post_accumulate_grad_hook(use_up) for each in optimizer.inside]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
