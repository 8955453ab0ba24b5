"""Tracks which module runs, by global forward hooks that report its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


@contextmanager
def follow(module: nn.Module, enter: Callable[[str], None], leave: Callable[[], None]) -> Iterator[None]:
    """Inside, `enter(path)` and `leave()` surround every forward of a module below `module`.

    Paths are those of `module.named_modules()`, with the root as the empty path. A recomputed block enters
    again, from the thread in which the backward runs. Modules that are not below `module` say nothing.
    """
    paths = {id(child): path for path, child in module.named_modules()}

    def before(child: nn.Module, _arguments: Any) -> None:
        path = paths.get(id(child))
        if path is not None:
            enter(path)

    def after(child: nn.Module, _arguments: Any, _output: Any) -> None:
        if id(child) in paths:
            leave()

    handles = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
