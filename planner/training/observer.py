"""Protocols of a step's observers: phases, and what tensors are for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

import torch

from planner.events import Category, Phase


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
    """An observer that also wants to know which module runs; see `scopes.follow`."""

    follows_modules: bool

    def enter(self, path: str) -> None:
        """The forward of the module at `path` begins (the root is the empty path)."""

    def leave(self) -> None:
        """The module entered last has ended, also when it ended with an error."""


@runtime_checkable
class RoleAssigner(Protocol):
    """An observer that wants what other threads still have to free to be freed in the place where it belongs."""

    def settle(self) -> None:
        """Wait until autograd's threads have given up the graph of the backward that has just ended."""


class NullObserver:
    """Watches nothing: with it the step installs no hook at all."""

    def mark(self, phase: Phase, iteration: int) -> None: ...

    def assign(self, tensor: torch.Tensor, category: Category, name: str = "") -> None: ...

    def region(self, category: Category, name: str = "") -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()
