"""Who is told what memory is for, and functions around which that is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Protocol

from torch import Tensor

from planner.events import Category


class RoleRecorder(Protocol):
    """Writes down roles by the identity of storages, never by values."""

    def assign(self, tensor: Tensor, category: Category, name: str = "") -> None:
        """The storage of this tensor belongs to `category` from here on."""

    def region(self, category: Category, name: str = "") -> AbstractContextManager[None]:
        """Storages born inside and alive at its end belong to `category`. Regions never nest."""


def in_region(
    function: Callable[..., Any], recorder: RoleRecorder, category: Category, name: str
) -> Callable[..., Any]:
    """The function, called inside a region of the recorder."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with recorder.region(category, name):
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
