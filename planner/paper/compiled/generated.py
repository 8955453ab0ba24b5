"""What generated code calls on the paper GPU: allocations, kernels that compute nothing, checks of results."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._inductor.config
from torch._library.simple_registry import singleton

from planner.paper import work_records
from planner.paper.compiled import padded_products
from planner.paper.compiled.kernel_timing import untimed_kernel
from planner.paper.compiled.patches import ASSUMED
from planner.paper.outside.operators import record_operator
from planner.paper.recorder import Recorder

with torch._inductor.config.patch(compile_threads=1):  # up to torch 2.8 it starts, where it is imported, processes
    from torch._inductor.async_compile import AsyncCompile


_recorder: Recorder | None = None
"""Hears of which module and operator an allocation is."""


def tell(recorder: Recorder | None) -> None:
    """From now on generated code tells this recorder; nobody with None."""
    global _recorder
    _recorder = recorder


class Origins:
    """The modules and operators of one generated function, and which of them is at work."""

    def __init__(
        self, origins: Sequence[tuple[str, str]], assumed: Sequence[str], timed: Sequence[padded_products.Product] = ()
    ) -> None:
        """`origins`: paths of modules, below the compiled one, with operators. `assumed`: what was when compiling.
        `timed`: products that a GPU would have been timed for meanwhile."""
        self._origins, self._operator = origins, ""
        self._assumed, self._timed = assumed, timed
        self._before: int | None = None

    def enter(self, number: int) -> None:
        """What follows is that of an origin, by its number."""
        path, self._operator = self._origins[number]
        if _recorder is not None:
            _recorder.return_to(self._before)
            _recorder.enter_below(path)

    def within(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The generated function, after which all is as before."""

        def run(arguments: Any) -> Any:
            ASSUMED.update(self._assumed)
            padded_products.take_timings(self._timed)
            outer, self._before = self._before, None if _recorder is None else _recorder.enter_below("")
            try:
                return call(arguments)
            finally:
                if _recorder is not None:
                    _recorder.return_to(self._before)
                self._before, self._operator = outer, ""

        return run

    def empty_strided(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """As `_empty_strided_cuda` (torch 2.13, torch/csrc/dynamo/guards.cpp), which builds for a CPU lack."""
        if _recorder is None or not self._operator:
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        with record_operator(self._operator):
            return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    def assert_size_stride(self, tensor: torch.Tensor, size: Any, stride: Any, operator: str = "") -> None:
        """As the function of this name that generated code calls (torch 2.13, torch/csrc/dynamo/guards.cpp), but for
        strides of a program's own operators: of earlier versions of torch the generated code did not check them. Up to
        torch 2.7 the code does not say whose results they are: those of the operator at work.

        Raises AssertionError as that one does.
        """
        try:
            named = (operator,) if operator else ()
            torch._C._dynamo.guards.assert_size_stride(tensor, size, stride, *named)
        except AssertionError:
            name = operator.removeprefix("torch.ops.").removesuffix(".default").replace(".", "::", 1) or self._operator
            # Whether a function in Python says what the operator returns (`torch.library.register_fake`).
            is_programs_own = bool(name) and singleton.find(name).fake_impl.kernel is not None
            if not _goes_on or tuple(tensor.size()) != tuple(size) or not is_programs_own:
                raise
            ASSUMED.add(_OTHER_STRIDES.format(name=name))


class _UnrunKernel:
    """A kernel: it writes to what was allocated for it, and its launch is only noted."""

    def __init__(self, name: str, source: str, untimed: Callable[..., None] | None = None) -> None:
        self._op, self._untimed = f"inductor::{name}", untimed
        signature = re.search(r"def \w+\(([^)]*)\)", source)
        self._names = [part.split(":")[0].strip() for part in signature[1].split(",")] if signature else []

    def run(self, *arguments: Any, **options: Any) -> None:
        """Of each buffer it reads or writes as many elements as it has to compute, or all."""
        if self._untimed is not None:
            untimed, self._untimed = self._untimed, None
            untimed(*arguments, **options)
        named = list(zip(self._names, arguments, strict=False))
        tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
        numels = [value for name, value in named if name.endswith("numel") and isinstance(value, int)]
        most = math.prod(numels) if numels else None
        reads = [tensor for name, tensor in tensors if not name.startswith("out_ptr")]
        writes = [tensor for name, tensor in tensors if name.startswith(("out_ptr", "in_out_ptr"))]
        for tensor in writes:
            torch.ops.paper.forget_value(tensor)

        def size(tensor: torch.Tensor) -> int:
            return min(tensor.numel(), most or tensor.numel()) * tensor.element_size()

        work_records.note_kernel(
            self._op, reads, writes, read_bytes=sum(map(size, reads)), written_bytes=sum(map(size, writes))
        )

    __call__ = run


@cache
def make_kernel(name: str, source: str) -> _UnrunKernel:
    """A kernel of Triton's. Equal code in several graphs is one kernel, which is timed once, as Inductor's modules of
    kernels are (torch 2.13, torch/_inductor/codecache.py, PyCodeCache)."""
    return _UnrunKernel(name, source, untimed_kernel(name, source))


class PaperCompile(AsyncCompile):
    """Compiles what runs on the host, and nothing for the device."""

    def triton(self, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:  # noqa: ARG002
        return make_kernel(kernel_name, source_code)


_OTHER_STRIDES = (
    "the operator {name} returns strides that its own register_fake does not say: torch 2.7 and later stop there, one "
    "before it (2.6, and nightlies of 2.7), which goes on, is taken to run the program"
)
_goes_on = False


@contextmanager
def other_strides(*, go_on: bool) -> Iterator[None]:
    """Inside, a program whose own operators return other strides than they say goes on, as under torch 2.6, or not."""
    global _goes_on
    before, _goes_on = _goes_on, go_on
    try:
        yield
    finally:
        _goes_on = before
