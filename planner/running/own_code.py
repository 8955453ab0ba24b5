"""Notices a program that has changed planner's own functions in its process: what they tell is then not taken.

This holds what no allocation attests (planner.running.attested): which groups of ranks there are, what was assumed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

_OWN = "planner"


class OwnCode:
    """Every function of planner's modules as it is now; to be made before a program's first line."""

    def __init__(self) -> None:
        self._modules = [name for name in sys.modules if name.partition(".")[0] == _OWN]
        self._known = dict(self._functions())

    def changed(self) -> str:
        """The name of a function that is another one by now, or gone; empty if there is none."""
        now = dict(self._functions())
        return next((name for name, found in self._known.items() if now.get(name) != found), "")

    def _functions(self) -> Iterator[tuple[str, tuple[int, CodeType]]]:
        for name in self._modules:
            for key, value in list(vars(sys.modules.get(name, sys)).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield from _of_class(f"{name}.{key}", value)
                else:
                    yield from _code_of(f"{name}.{key}", value)


def _of_class(path: str, kind: type) -> Iterator[tuple[str, tuple[int, CodeType]]]:
    for key, value in list(vars(kind).items()):
        yield from _code_of(f"{path}.{key}", value)


def _code_of(path: str, value: Any) -> Iterator[tuple[str, tuple[int, CodeType]]]:
    """Those that are defined under their names: a variable may have another function any time."""
    parts = (value, *(getattr(value, name, None) for name in ("__func__", "fget", "__wrapped__")))
    for number, each in enumerate(parts):
        if isinstance(each, FunctionType) and path.endswith(f".{each.__name__}"):
            yield f"{path}#{number}", (id(each), each.__code__)
