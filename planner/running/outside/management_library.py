"""NVML as programs ask it, by `pynvml` and by `torch.cuda`: names and memory of the paper GPUs, and no activity.

Names of functions and constants are those of nvidia-ml-py 13 (pynvml.py). Memory is that of the modelled allocator with
what the process holds outside of it; what only a GPU at work has (utilisation, temperature, power, clocks) is answered
with 0, and every such answer is in the report. Everything else is refused by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from planner.errors import TraceError
from planner.running.assumptions import About, Assumptions, place_of
from planner.running.live_memory import LiveMemory
from planner.units import MIB

_CONSTANTS = {
    "NVML_SUCCESS": 0, "NVML_ERROR_UNINITIALIZED": 1, "NVML_ERROR_INVALID_ARGUMENT": 2, "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_TEMPERATURE_GPU": 0, "NVML_CLOCK_GRAPHICS": 0, "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2,
}  # fmt: skip
_DRIVER = "580.65.06"
"""The first driver of CUDA 13.0 (its release notes)."""


class NVMLError(Exception):
    """As pynvml raises it."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class ManagementLibrary:
    """Of one node with `gpus` GPUs, of which the current one's memory is known."""

    def __init__(self, product: str, gpus: int, memory: LiveMemory, assumptions: Assumptions) -> None:
        self._product, self._gpus, self._memory, self._assumptions = product, gpus, memory, assumptions

    def used_bytes(self, index: int) -> int:
        """As the device reports it; other GPUs of the node are taken to be as full as this one."""
        if index != torch.cuda.current_device():
            self._assume("memory of another GPU of the node is taken to be as much as of this one")
        return self._memory.total_bytes - self._memory.free_bytes()

    def idle(self, what: str) -> int:
        """The answer to a question that only a GPU at work could answer."""
        self._assume(f"{what} of the GPU was asked for and answered with 0")
        return 0

    def processes(self, index: int) -> list[Any]:
        """This process alone."""
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=self.used_bytes(index), gpuInstanceId=0xFFFFFFFF)]

    def list_processes(self, index: int) -> str:
        """`torch.cuda.list_gpu_processes` (torch 2.13, torch/cuda/memory.py)."""
        lines = [f"process {each.pid:>10d} uses {each.usedGpuMemory / MIB:>12.3f} MB GPU memory"
                 for each in self.processes(index)]  # fmt: skip
        return "\n".join([f"GPU:{index}", *lines])

    def _assume(self, sentence: str) -> None:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]
        self._assumptions.add(About.DEVICE, sentence, place_of(frames))

    def _handle(self, index: int) -> int:
        if not 0 <= int(index) < self._gpus:
            raise NVMLError(_CONSTANTS["NVML_ERROR_INVALID_ARGUMENT"])
        return int(index)

    def _memory_info(self, handle: int, version: Any = None) -> SimpleNamespace:
        total, used = self._memory.total_bytes, self.used_bytes(handle)
        found = SimpleNamespace(total=total, used=used, free=total - used)
        if version:
            found.version, found.reserved = version, 0
        return found

    def _activity(self, handle: int) -> SimpleNamespace:  # noqa: ARG002
        self.idle("the utilization")
        return SimpleNamespace(gpu=0, memory=0)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """By their names in pynvml; devices are named by their numbers."""
        nothing: Callable[..., None] = lambda *_arguments: None  # noqa: E731
        return {
            "nvmlInit": nothing,
            "nvmlInitWithFlags": nothing,
            "nvmlShutdown": nothing,
            "nvmlSystemGetDriverVersion": lambda: _DRIVER,
            "nvmlSystemGetCudaDriverVersion": lambda: 13000,
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetCount": lambda: self._gpus,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetName": lambda _handle: self._product,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-paper-{handle}",
            "nvmlDeviceGetMemoryInfo": self._memory_info,
            "nvmlDeviceGetCudaComputeCapability": lambda _handle: torch.cuda.get_device_capability(),
            "nvmlDeviceGetComputeRunningProcesses": self.processes,
            "nvmlDeviceGetGraphicsRunningProcesses": lambda _handle: [],
            "nvmlDeviceGetUtilizationRates": self._activity,
            "nvmlDeviceGetTemperature": lambda *_a: self.idle("the temperature"),
            "nvmlDeviceGetPowerUsage": lambda _handle: self.idle("the power"),
            "nvmlDeviceGetEnforcedPowerLimit": lambda _handle: self.idle("the power limit"),
            "nvmlDeviceGetTotalEnergyConsumption": lambda _handle: self.idle("the energy"),
            "nvmlDeviceGetClockInfo": lambda *_a: self.idle("a clock"),
        }

    def module(self) -> ModuleType:
        """What `import pynvml` finds."""
        made = _Module("pynvml")
        vars(made).update(_CONSTANTS, NVMLError=NVMLError, __version__="13.0.0", **self.functions())
        return made


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TraceError(
            f"the program uses pynvml.{name}, which is not answered on paper",
            allowed=", ".join(sorted(each for each in vars(self) if each.startswith("nvml"))),
            remedy="leave it out, or put a module pynvml of your own in its place (--kernels, docs/outside-kernels.md)",
        )
