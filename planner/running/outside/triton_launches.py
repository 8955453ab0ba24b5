"""Triton, where it is installed: kernels are launched as nothing, and its driver is that of the paper GPU.

What a kernel writes to was allocated before its launch. A kernel with several configurations is not timed: the first
one stands for the fastest, and the buffer with which the timing empties the GPU's cache is taken and given back as
Triton 3.9 does (triton/testing.py do_bench, backends/nvidia/driver.py get_empty_cache_for_benchmark).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from planner import upstream
from planner.errors import TraceError
from planner.paper.kernels import workspaces
from planner.paper.outside.operators import told_as
from planner.running.assumptions import About, Assumptions

TIMING_BYTES = 256 * 2**20
"""Triton 3.9, backends/nvidia/driver.py."""
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
    """Launches of one program, by Triton's own classes or by those of its stand-in."""

    def __init__(self, properties: Any, assumptions: Assumptions) -> None:
        self.driver = Driver(properties, self.timed)
        self._assumptions = assumptions
        self._scratch = False
        self.compiles = False
        """Whether the program compiles."""

    def launch(self, _kernel: Any, *arguments: Any, **named: Any) -> Launched:
        """`JITFunction.run`: what a tensor holds is not known afterwards."""
        for each in (*arguments, *named.values()):
            if isinstance(each, torch.Tensor) and each.is_cuda:
                torch.ops.paper.forget_value(each)
        if self._scratch:
            workspaces.note_unknown_workspace("triton::scratch")
        return Launched()

    def timed(
        self, call: Callable[[], Any], *_settings: Any, quantiles: Sequence[float] | None = None, **_: Any
    ) -> Any:
        """`triton.testing.do_bench` and its kin: one call, the buffer, and the same time for everybody."""
        self._assumptions.add(About.DEVICE, _FIRST)
        call()
        with told_as("triton::do_bench"):
            buffer = torch.empty(TIMING_BYTES // 4, dtype=torch.int32, device="cuda")
        call()
        del buffer
        return [1.0] * len(quantiles) if quantiles else 1.0

    def set_allocator(self, *_arguments: Any) -> None:
        """`triton.set_allocator`: from here on kernels take scratch memory whose size only the compiled ones know."""
        self._scratch = True

    def patched(self) -> Any:
        """Triton's own classes launch nothing, inside; Triton has been imported."""
        importlib.import_module("triton.runtime.driver").driver.set_active(self.driver)
        wrapped = {"triton.runtime.jit:JITFunction.run": lambda _real: self._run()}
        replaced = {
            "triton.testing:do_bench": self.timed,
            "triton.testing:do_bench_cudagraph": self.timed,
            "triton:set_allocator": self.set_allocator,
        }
        return upstream.patch_targets("program launches triton", replaced=replaced, wrapped=wrapped)

    def _run(self) -> Callable[..., Launched]:
        def run(kernel: Any, *arguments: Any, **named: Any) -> Launched:
            return self.launch(kernel, *arguments, **named)

        return run


class Driver:
    """What Triton and programs ask of the active driver (triton/backends/nvidia/driver.py)."""

    def __init__(self, properties: Any, benchmarker: Callable[..., Any]) -> None:
        self._properties, self._benchmarker = properties, benchmarker
        self.utils = SimpleNamespace(get_device_properties=self._answer, set_printf_fifo_size=lambda _bytes: None)

    def _answer(self, _device: int = 0) -> dict[str, int]:
        known = self._properties
        return {
            "max_shared_mem": known.shared_memory_per_block_optin,
            "max_num_regs": known.regs_per_multiprocessor,
            "multiprocessor_count": known.multi_processor_count,
            "warpSize": known.warp_size,
        }

    def get_current_target(self) -> Any:
        """As Triton's own class where that is there."""
        capability = self._properties.major * 10 + self._properties.minor
        values = {"backend": "cuda", "arch": capability, "warp_size": self._properties.warp_size}
        try:
            return importlib.import_module("triton.backends.compiler").GPUTarget(**values)
        except (ImportError, TraceError):
            return SimpleNamespace(**values)

    def get_current_device(self) -> int:
        return int(torch.cuda.current_device())

    def set_current_device(self, device: int) -> None:
        torch.cuda.set_device(device)

    def get_current_stream(self, _device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self.get_current_device())

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        return self._benchmarker

    def get_device_capability(self) -> tuple[int, int]:
        return self._properties.major, self._properties.minor

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(TIMING_BYTES // 4, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    @staticmethod
    def is_active() -> bool:
        return True
