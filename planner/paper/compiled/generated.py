"""What generated code calls on the paper GPU: allocations that say whose they are, and kernels that compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch._inductor.config

from planner.paper.compiled import operator_results
from planner.paper.compiled.assumptions import ASSUMED

with torch._inductor.config.patch(compile_threads=1):  # up to torch 2.8 it starts, where it is imported, processes
    from torch._inductor.async_compile import AsyncCompile


class Scopes(Protocol):
    """Whoever writes down of which module and operator an allocation is."""

    def enter_below(self, path: str) -> int | None:
        """The module at this path below the one that was entered last is at work; what was before."""

    def return_to(self, scope: int | None) -> None:
        """As it was before `enter_below`."""

    def enter_operator(self, name: str) -> int:
        """What is allocated now is this operator's; what was before."""

    def leave_operator(self, before: int) -> None:
        """As it was before `enter_operator`."""


class _Silent:
    """Nobody writes anything down."""

    def enter_below(self, path: str) -> int | None:  # noqa: ARG002
        return None

    def return_to(self, scope: int | None) -> None: ...

    def enter_operator(self, name: str) -> int:  # noqa: ARG002
        return -1

    def leave_operator(self, before: int) -> None: ...


_scopes: Scopes = _Silent()


def tell(scopes: Scopes | None) -> None:
    """From now on generated code tells these scopes; nobody with None."""
    global _scopes
    _scopes = scopes or _Silent()


class Origins:
    """The modules and operators of one generated function, and which of them is at work."""

    def __init__(self, origins: Sequence[tuple[str, str]], assumed: Sequence[str]) -> None:
        """`origins`: paths of modules, below the compiled one, with operators. `assumed`: what was when compiling."""
        self._origins, self._operator = origins, ""
        self._assumed = assumed
        self._before: int | None = None

    def enter(self, number: int) -> None:
        """What follows is that of an origin, by its number."""
        path, self._operator = self._origins[number]
        _scopes.return_to(self._before)
        _scopes.enter_below(path)

    def within(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The generated function, after which all is as before."""

        def run(arguments: Any) -> Any:
            ASSUMED.update(self._assumed)
            outer, self._before = self._before, _scopes.enter_below("")
            try:
                return call(arguments)
            finally:
                _scopes.return_to(self._before)
                self._before, self._operator = outer, ""

        return run

    def empty_strided(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """As `_empty_strided_cuda` (torch 2.13, torch/csrc/dynamo/guards.cpp), which builds for a CPU lack."""
        before = _scopes.enter_operator(self._operator) if self._operator else None
        try:
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        finally:
            if before is not None:
                _scopes.leave_operator(before)

    def assert_size_stride(self, tensor: torch.Tensor, size: Any, stride: Any, operator: str = "") -> None:
        """As `operator_results.assert_size_stride`, by the operator at work where the code does not name one."""
        operator_results.assert_size_stride(tensor, size, stride, operator, at_work=self._operator)


class _UnrunKernel:
    """A kernel: it writes to what was allocated for it, and its launch is nothing."""

    def run(self, *_arguments: Any, **_options: Any) -> None: ...

    __call__ = run


class PaperCompile(AsyncCompile):
    """Compiles what runs on the host, and nothing for the device."""

    def triton(self, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:  # noqa: ARG002
        return _UnrunKernel()


class PaperCompileForCpu(PaperCompile):
    """Compiles nothing: for the target `cpu` the host's own kernels stand for the device's."""

    def cpp(self, source_code: str) -> Any:  # noqa: ARG002
        return _UnrunKernel()

    def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:  # noqa: ARG002
        return _UnrunKernel()


def get_raw_stream(_device: int = 0) -> int:
    """Launches ask for it, and do nothing with it."""
    return 0
