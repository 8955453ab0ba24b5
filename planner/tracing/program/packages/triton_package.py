"""Triton on paper: its kernels are launched as nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from planner import upstream
from planner.errors import TraceError
from planner.paper import library
from planner.paper.compiled import triton_kernels
from planner.paper.outside.operators import TRITON_BUFFER_BYTES, benchmark
from planner.tracing.program.assumptions import About, Assumptions
from planner.tracing.program.cuda import forget_values
from planner.tracing.program.packages.triton_interpreter import find_written, follow_launch

# What a kernel writes to was allocated before its launch. A kernel with several configurations is not timed: the first
# one stands for the fastest, and the buffer with which the timing empties the GPU's cache is taken and given back as
# Triton 3.9 does (triton/testing.py do_bench, backends/nvidia/driver.py get_empty_cache_for_benchmark).
_FIRST = (
    "of several configurations of a Triton kernel the first is the fastest; the 256 MiB of their timing are counted"
)


class Launched:
    """A compiled kernel that is not there."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program asks a compiled Triton kernel for {name}, and nothing is compiled",
            allowed="launches of kernels",
            remedy="choose sizes without asking the compiled kernel",
        )


class Launches:
    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._scratch = False

    def launch(self, kernel: Any, *arguments: Any, **named: Any) -> Launched:
        """`JITFunction.run`: what it writes is not known afterwards, except whole numbers made of known ones."""
        if not follow_launch(kernel, arguments, named):
            given = {**dict(zip(kernel.arg_names, arguments, strict=False)), **named}
            written = find_written(kernel.fn)
            forget_values(value for name, value in given.items() if name in written)
        if self._scratch:
            library.load().paper_workspace_is_unknown(b"triton::scratch")
        return Launched()

    def timed(
        self, call: Callable[[], Any], *_settings: Any, quantiles: Sequence[float] | None = None, **_: Any
    ) -> Any:
        """`triton.testing.do_bench` and its kin: one call, the buffer, and the same time for everybody."""
        self._assumptions.add(About.DEVICE, _FIRST)
        time = benchmark(call, TRITON_BUFFER_BYTES, "triton::do_bench")
        return [time] * len(quantiles) if quantiles else time

    def set_allocator(self, *_arguments: Any) -> None:
        """`triton.set_allocator`: from here on kernels take scratch memory whose size only the compiled ones know."""
        self._scratch = True

    def patched(self) -> Any:
        """Triton's own classes launch nothing, inside; Triton has been imported."""
        driver = importlib.import_module("triton.runtime.driver").driver
        driver.set_active(triton_kernels.make_driver(self.timed))

        def run(kernel: Any, *arguments: Any, **named: Any) -> Launched:
            return self.launch(kernel, *arguments, **named)

        replaced = {
            "triton.testing:do_bench": self.timed,
            "triton.testing:do_bench_cudagraph": self.timed,
            "triton:set_allocator": self.set_allocator,
            "triton.runtime.jit:JITFunction.run": run,
        }
        return upstream.patch_targets("program launches triton", replaced=replaced)
