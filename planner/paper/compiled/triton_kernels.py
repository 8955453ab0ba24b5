"""Triton's driver on paper, and kernels of users that are launched as nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from planner import cuda_on_paper, upstream
from planner.paper.outside.operators import TRITON_BUFFER_BYTES

_LAUNCHES = (
    "triton.runtime.jit:JITFunction.run",
    "triton.runtime.autotuner:Autotuner.run",
    "triton.runtime.autotuner:Heuristics.run",
)


@contextmanager
def launched_as_nothing() -> Iterator[None]:
    """Inside, a launch does nothing (what a kernel writes to was allocated before it), and Triton's driver is that of
    the GPU on paper: which arguments a kernel writes to is found by Triton's own front end.
    """
    driver, place, unasked = _find_driver()
    if getattr(driver, place) is not unasked:  # a program's run has put a driver there that launches nothing
        yield
        return
    launches = upstream.patch_targets("triton launches", replaced=dict.fromkeys(_LAUNCHES, _launch_nothing))
    with launches, driver_on_paper(_launch_nothing):
        yield


@contextmanager
def driver_on_paper(benchmarker: Callable[..., Any]) -> Iterator[None]:
    """Inside, Triton's driver is that of the GPU on paper; `benchmarker` times kernels."""
    driver, place, unasked = _find_driver()
    driver.set_active(make_driver(benchmarker))
    try:
        yield
    finally:
        setattr(driver, place, unasked)  # asked for again, it is found anew


def _find_driver() -> tuple[Any, str, Any]:
    """Triton's, where it keeps the active one, and what is there before anybody asks: none, and in early Triton (3.2,
    that of torch 2.6) what will find one."""
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    return (driver, "_active", None) if hasattr(driver, "_active") else (driver, "active", driver.default)


def _launch_nothing(*_arguments: Any, **_options: Any) -> None: ...


def make_driver(benchmarker: Callable[..., Any]) -> SimpleNamespace:
    """What Triton and programs ask of the active driver (triton/backends/nvidia/driver.py). Kernels that are tuned ask
    for what times them; in early Triton (3.2) already where they are defined."""

    def properties(_device: int = 0) -> dict[str, int]:
        gpu: Any = torch.cuda.get_device_properties()
        return {
            "max_shared_mem": cuda_on_paper.describe_device()["maxSharedMemoryPerBlockOptin"],
            "max_num_regs": gpu.regs_per_multiprocessor,
            "multiprocessor_count": gpu.multi_processor_count,
            "warpSize": gpu.warp_size,
        }

    def current_target() -> Any:
        major, minor = torch.cuda.get_device_capability()
        compiler = importlib.import_module("triton.backends.compiler")
        return compiler.GPUTarget("cuda", major * 10 + minor, torch.cuda.get_device_properties().warp_size)

    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=properties, set_printf_fifo_size=lambda _bytes: None),
        get_current_target=current_target,
        get_current_device=torch.cuda.current_device,
        set_current_device=torch.cuda.set_device,
        get_current_stream=lambda _device=None: 0,
        get_active_torch_device=lambda: torch.device("cuda", torch.cuda.current_device()),
        get_device_interface=lambda: torch.cuda,
        get_benchmarker=lambda: benchmarker,
        get_device_capability=torch.cuda.get_device_capability,
        get_empty_cache_for_benchmark=lambda: torch.empty(TRITON_BUFFER_BYTES // 4, dtype=torch.int32, device="cuda"),
        clear_cache=lambda cache: cache.zero_(),
        is_active=lambda: True,
    )
