"""Kernels that are written down and not loaded: for that Triton would have to be there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def write_down(source_code: str, extra: str = "", *, set_sys_modules: bool | None = None) -> Any:  # noqa: ARG001
    """In place of `PyCodeCache.load` (torch 2.13, torch/_inductor/codecache.py), which is asked for templates of
    kernels: of the module its name and its file are used."""
    from torch._inductor import codecache

    key, path = codecache.write(source_code, "py", extra=extra)
    return SimpleNamespace(__name__=f"unloaded_{key}", __file__=path, key=key)


class KernelConfig:
    """In place of `triton.Config` where Triton is not installed: how a template of a kernel is cut."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **options: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.__dict__.update(options)
