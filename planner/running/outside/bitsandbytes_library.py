"""The compiled library of bitsandbytes, where the package is installed: it works in place, and so does nothing.

Everything that its kernels write to is allocated by the package's own Python code with torch (bitsandbytes 0.50,
backends/cuda/ops.py; 0.42, functional.py), which runs as it is. Kernels for the host are the package's own. Unified
memory, in which paged optimizers keep their state, is the host's here: no allocator of torch knows it on a GPU either.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import mmap
from pathlib import Path
from typing import Any

from planner import upstream

_NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python 3.11 does not name."""


class Library:
    """In the place of `bitsandbytes.cextension.lib`."""

    compiled_with_cuda = True

    def __init__(self, of_host: Any) -> None:
        self._of_host = of_host
        self._unified: list[mmap.mmap] = []
        self.cget_managed_ptr = functools.partial(self._unified_memory)  # 0.42 sets `restype` on it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._of_host, name) if "_cpu" in name else _succeed

    def _unified_memory(self, size: ctypes.c_size_t) -> int:
        """Memory that takes none before it is written to, which nobody does."""
        self._unified.append(mmap.mmap(-1, max(size.value, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE))
        return ctypes.addressof(ctypes.c_char.from_buffer(self._unified[-1]))


def _succeed(*_arguments: Any) -> int:
    return 0


def patched() -> Any:
    """Inside, the package's compiled part is this one; `bitsandbytes.cextension` has just been imported."""
    extension: Any = importlib.import_module("bitsandbytes.cextension")
    suffix = getattr(extension, "DYNAMIC_LIBRARY_SUFFIX", ".so")
    path = Path(extension.__file__).with_name(f"libbitsandbytes_cpu{suffix}")
    of_host = ctypes.CDLL(str(path)) if path.is_file() else None
    replaced = {"bitsandbytes.cextension:lib": Library(of_host)}
    return upstream.patch_targets("program's bitsandbytes", replaced=replaced)


def patched_search() -> Any:
    """Inside, the package up to 0.42 looks for no CUDA on this machine, where it would stop: it has this library."""

    def found(setup: Any) -> None:
        setup.initialized, setup.lib = True, Library(None)

    target = "bitsandbytes.cuda_setup.main:CUDASetup.run_cuda_setup"
    return upstream.patch_targets("program's early bitsandbytes", replaced={target: found})
