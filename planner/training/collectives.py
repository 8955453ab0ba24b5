"""Reports the tensors that functional collectives return to an observer.

A functional collective allocates what it returns (torch 2.13, torch/csrc/distributed/c10d/Functional.cpp), and whoever
called goes on with it: under tensor parallelism most of these tensors are kept for the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner import upstream
from planner.events import Category
from planner.training.observer import NullObserver, Observer

_FUNCTIONAL = "torch:ops._c10d_functional"
_NAMES = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    # torch 2.13 has new names for some of them
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


@contextmanager
def observe_collectives(observer: Observer) -> Iterator[None]:
    """Inside, the observer hears of every tensor that a functional collective returns."""
    if isinstance(observer, NullObserver):
        yield
        return
    with upstream.patch_targets(
        "collectives", wrapped={f"{_FUNCTIONAL}.{name}": _observe_collective(name, observer) for name in _NAMES}
    ):
        yield


def _observe_collective(name: str, observer: Observer) -> Callable[[Any], _ObservedOperator]:
    return lambda operator: _ObservedOperator(operator, name, observer)


class _ObservedOperator:
    """The operator, called inside a region; else itself."""

    def __init__(self, operator: Any, name: str, observer: Observer) -> None:
        self._operator, self._name, self._observer = operator, name, observer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._observer.region(Category.COMMUNICATION, self._name):
            return self._operator(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)
