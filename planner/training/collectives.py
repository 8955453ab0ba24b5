"""What collectives return: told to an observer, wherever DTensor or a ring of attention calls for one.

A functional collective allocates what it returns (torch 2.13, torch/csrc/distributed/c10d/Functional.cpp), and whoever
called goes on with it: under tensor parallelism most of these tensors are kept for the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from planner.events import Category
from planner.training.observer import Observer, Silent

_FUNCTIONAL = (
    "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast",
    # torch 2.13 has new names for some of them
    "all_gather_single", "reduce_scatter_single",
)  # fmt: skip


@contextmanager
def told(observer: Observer) -> Iterator[None]:
    """Inside, the observer hears of every tensor that a functional collective returns."""
    if isinstance(observer, Silent):
        yield
        return
    functional = torch.ops._c10d_functional
    with ExitStack() as patches:
        for name in _FUNCTIONAL:
            if hasattr(functional, name):
                watched = _Watched(getattr(functional, name), name, observer)
                patches.enter_context(mock.patch.object(functional, name, watched))
        yield


class _Watched:
    """The operator, called inside a region; else itself."""

    def __init__(self, operator: Any, name: str, observer: Observer) -> None:
        self._operator, self._name, self._observer = operator, name, observer

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._observer.region(Category.COMMUNICATION, self._name):
            return self._operator(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)
