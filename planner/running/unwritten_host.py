"""Large tensors of the host that a program initialises take no memory: random numbers for them are left out.

They read as zeros, and what is copied from them into new memory is not copied: both are zeros. Nothing else is left
out, so whatever the program writes itself is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from planner import upstream
from planner.running.assumptions import About, Assumptions
from planner.running.memory_pages import LARGE_BYTES, is_unwritten, take_large_anew
from planner.upstream import versions

_RANDOM = ("normal_", "uniform_")
_SAID = f"initial random numbers of host tensors from {LARGE_BYTES >> 20} MiB on are left out: those read as zeros"


@contextmanager
def left_unwritten(assumptions: Assumptions) -> Iterator[None]:
    """Inside, large host tensors are initialised without being written."""
    take_large_anew()
    library = torch.library.Library("aten", "IMPL")
    host = _Host(assumptions)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")
        for name in _RANDOM:
            library.impl(name, _uncompiled(host.random(name)), _KEY, with_keyset=True)
        library.impl("copy_", _uncompiled(host.copy()), _KEY, with_keyset=True)
        library.impl("zeros", _uncompiled(_zeros), "CPU")
    wrapped: dict[str, upstream.Wrapper] = dict.fromkeys(_INITIALISERS, host.initialiser)
    try:
        with upstream.patch_targets("program initialises", wrapped=wrapped):
            yield
    finally:
        library._destroy()


def _uncompiled(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Dynamo looks at every Python that runs inside a compiled call."""
    disabled: Callable[..., Tensor] = torch.compiler.disable(kernel)
    return disabled


_KEY = "CPU" if versions.since(2, 9) else "BackendSelect"
"""Where these operators are entered. Before torch 2.9 a kernel that another one replaces cannot be called any more:
there they are entered one key above, for every device."""


def _real(name: str) -> Callable[..., Tensor]:
    """Torch's own kernel, to be called with the keys that its replacement was given."""
    if versions.since(2, 9):
        found: Callable[..., Tensor] = torch.library.get_kernel(f"aten::{name}", "CPU").call_boxed
        return found
    operator, above = getattr(torch.ops.aten, name), torch._C.DispatchKey.BackendSelect

    def call(keys: Any, *arguments: Any, **named: Any) -> Tensor:
        result: Tensor = operator.default.redispatch(keys.remove(above), *arguments, **named)
        return result

    return call


_INITIALISERS = ("torch.nn.init:_no_grad_trunc_normal_", "torch.nn.init:orthogonal_")
"""Those that compute with their random numbers."""


class _Host:
    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions

    def leaves_out(self, tensor: Tensor) -> bool:
        """Whether it keeps what it has."""
        if not _has_memory(tensor) or not tensor.is_floating_point():
            return False
        if tensor.untyped_storage().nbytes() < LARGE_BYTES:
            return False
        self._assumptions.add(About.HOST, _SAID)
        return True

    def random(self, name: str) -> Callable[..., Tensor]:
        """The kernel of an operator that fills a tensor with random numbers."""
        real = _real(name)

        def fill(keys: Any, tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if self.leaves_out(tensor):
                return tensor
            filled: Tensor = real(keys, tensor, *arguments, **named)
            return filled

        return fill

    def copy(self) -> Callable[..., Tensor]:
        """The kernel of a copy within the host."""
        real = _real("copy_")

        def copy(keys: Any, tensor: Tensor, source: Any, non_blocking: bool = False) -> Tensor:
            if not isinstance(source, Tensor):  # a number that is assigned comes as one
                source = torch.scalar_tensor(source, dtype=tensor.dtype)
            if _is_unwritten(source) and _is_unwritten(tensor):
                return tensor
            copied: Tensor = real(keys, tensor, source, non_blocking)
            return copied

        return copy

    def initialiser(self, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def initialise(tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
            if self.leaves_out(tensor):
                return tensor
            return real(tensor, *arguments, **named)

        return initialise


def _has_memory(tensor: Tensor) -> bool:
    """On the host. What a compiler traces, which comes here too before torch 2.9, has none, and symbols for sizes."""
    is_traced = isinstance(tensor, FakeTensor) or torch._is_functional_tensor(tensor)
    return tensor.device.type == "cpu" and not is_traced


def _is_unwritten(tensor: Tensor) -> bool:
    return _has_memory(tensor) and tensor.nbytes >= LARGE_BYTES and is_storage_unwritten(tensor.untyped_storage())


def is_storage_unwritten(storage: torch.UntypedStorage) -> bool:
    """Whether a storage of the host is large and was never written: it is all zeros."""
    return storage.device.type == "cpu" and is_unwritten(storage.data_ptr(), storage.nbytes())


def _zeros(size: Sequence[int], **options: Any) -> Tensor:
    made = torch.empty(size, **options)
    return made if made.untyped_storage().nbytes() >= LARGE_BYTES else made.zero_()
