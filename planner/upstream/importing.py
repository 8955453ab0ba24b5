"""Patches modules when they are imported: what few programs import, others do not pay for."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

Patch = Callable[[], AbstractContextManager[Any]]


@contextmanager
def when_imported(patches: Mapping[str, Patch]) -> Iterator[None]:
    """Inside, each patch holds from the import of its module on."""
    with ExitStack() as stack:

        def enter(name: str) -> None:
            stack.enter_context(patches[name]())

        for name in patches.keys() & sys.modules.keys():
            enter(name)
        finder = _Finder(enter, patches.keys())
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, then: Callable[[], object]) -> None:
        self._real, self._then = real, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._then()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, enter: Callable[[str], object], names: Collection[str]) -> None:
        self._enter, self._names = enter, names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._names:
            return None
        following = sys.meta_path[sys.meta_path.index(self) + 1 :]  # another one of these may stand before
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in following)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, partial(self._enter, name))
        return spec
