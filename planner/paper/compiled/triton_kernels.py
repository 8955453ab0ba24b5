"""Triton kernels of users: read as for a GPU of the target, and launched as nothing."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from planner import upstream
from planner.paper.targets import Target

_LAUNCHES = (
    "triton.runtime.jit:JITFunction.run",
    "triton.runtime.autotuner:Autotuner.run",
    "triton.runtime.autotuner:Heuristics.run",
)


@contextmanager
def launched_as_nothing(target: Target) -> Iterator[None]:
    """Inside, a launch does nothing (what a kernel writes to was allocated before it), and Triton's driver is that of a
    GPU of this target: which arguments a kernel writes to is found by Triton's own front end.
    """
    driver = importlib.import_module("triton.runtime.driver").driver
    is_early = not hasattr(driver, "_active")  # 3.2, that of torch 2.6
    # As it is before anybody asks: none, and in early Triton what will find one.
    place, unasked = ("active", driver.default) if is_early else ("_active", None)
    if getattr(driver, place) is not unasked:  # whoever runs a program has put a driver there, and launches nothing
        yield
        return
    with upstream.patch_targets("triton launches", replaced=dict.fromkeys(_LAUNCHES, _launch_nothing)):
        driver.set_active(_PaperDriver(target))
        try:
            yield
        finally:
            setattr(driver, place, unasked)  # asked for again, it is found anew


def _launch_nothing(*_arguments: Any, **_options: Any) -> None: ...


class _PaperDriver:
    """What Triton asks of the driver of a GPU."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        major, minor = self._target.capability
        return importlib.import_module("triton.backends.compiler").GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Kernels that are tuned ask for it where they are defined, in early Triton (3.2); nothing is timed."""
        return _launch_nothing

    @staticmethod
    def is_active() -> bool:
        return True
