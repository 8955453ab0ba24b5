"""Does something to modules of other packages as soon as they are imported, or at once if they are."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Then = Callable[[], None]


class _Loader(importlib.abc.Loader):
    """The module's own loader, and what follows."""

    def __init__(self, real: Any, then: Then) -> None:
        self._real, self._then = real, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._then()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, then: Mapping[str, Then]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._then:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._then[name])
                return spec
        return None


@contextmanager
def followed(then: Mapping[str, Then]) -> Iterator[None]:
    """Inside, each function is called when the module of its name has been imported."""
    finder = _Finder(then)
    for name in then.keys() & sys.modules.keys():
        then[name]()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
