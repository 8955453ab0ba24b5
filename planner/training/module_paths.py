"""Tracks which module runs, by forward hooks that report its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn


@contextmanager
def follow(
    module: nn.Module, enter: Callable[[str], None], leave: Callable[[], None], compiled: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Inside, `enter(path)` and `leave()` surround every forward of a module below `module`.

    Paths are those of `module.named_modules()`, with the root as the empty path. A recomputed block enters again, from
    the thread in which the backward runs. Modules that are not below `module` say nothing, and those inside of one that
    is `compiled` neither: a hook there would break what is compiled into pieces.
    """
    silent = {id(inside) for each in compiled for inside in each.modules() if inside is not each}
    handles = []
    for path, child in module.named_modules():
        if id(child) in silent:
            continue
        handles.append(child.register_forward_pre_hook(partial(_before, enter, path), prepend=True))
        handles.append(child.register_forward_hook(partial(_after, leave), prepend=True, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _before(enter: Callable[[str], None], path: str, _module: nn.Module, _arguments: Any) -> None:
    enter(path)


def _after(leave: Callable[[], None], _module: nn.Module, _arguments: Any, _output: Any) -> None:
    leave()
