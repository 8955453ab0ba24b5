"""Writes what one process of a program took of each GPU: a file when torch is imported, the figures when it ends.

It is loaded by its path into a process that may not have planner, so it needs Python's library and torch alone. Keys of
`torch.cuda.memory_stats` are those of torch 2.1 to 2.13 (torch/cuda/memory.py).
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

SNAPSHOTS = "PLANNER_MEASURE_SNAPSHOTS"
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_FIGURES = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_RESET = "reset_peak_memory_stats"
_RESETTERS = ("torch.cuda", "torch.cuda.memory", "torch.accelerator", "torch.accelerator.memory")


def begin(folder: str) -> None:
    """Called once, when torch has been imported. `folder` is where the file of this process goes."""
    recorder = _Recorder(sys.modules["torch"], folder)
    recorder.write({})
    recorder.keep_peaks()
    if os.environ.get(SNAPSHOTS):
        # Before CUDA is in use nothing may touch it: the program has yet to choose its device, or forks.
        recorder.torch.cuda._lazy_call(recorder.record_history)
    atexit.register(recorder.end)


class _Recorder:
    def __init__(self, torch: Any, folder: str) -> None:
        self.torch = torch
        self._path = os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}.json")
        self._process = os.getpid()
        self._before: dict[int, dict[str, int]] = {}
        self._resets = 0
        self._records_history = False

    def keep_peaks(self) -> None:
        """A program that sets its counters back must not lose what was before."""
        for name in _RESETTERS:
            module = sys.modules.get(name)
            reset = getattr(module, _RESET, None)
            if reset is not None:
                setattr(module, _RESET, self._keeping(reset))

    def _keeping(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reset)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.torch.cuda.is_initialized():
                self._resets += 1
                self._before = {device: self._peak(device) for device in range(self.torch.cuda.device_count())}
            return reset(*args, **kwargs)

        return wrapper

    def record_history(self) -> None:
        """Without stacks: nobody's paths stand in it. Torch calls this, and an exception would end the program."""
        try:
            self.torch.cuda.memory._record_memory_history(context=None, stacks="python")
            self._records_history = True
        except Exception as error:
            print(f"planner: no history is kept: {type(error).__name__}: {error}", file=sys.stderr)

    def end(self) -> None:
        """Not in a forked child, which has not CUDA of its own."""
        if os.getpid() != self._process:
            return
        try:
            self.write(self._figures())
        except Exception as error:
            print(f"planner: this process is not measured: {type(error).__name__}: {error}", file=sys.stderr)

    def write(self, figures: Mapping[str, Any]) -> None:
        """The whole file anew; `figures` are empty until the process ends."""
        document = {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "host": socket.gethostname(),
            "variables": {name: os.environ[name] for name in RANK_VARIABLES if os.environ.get(name)},
            "has_ended": bool(figures),
            **figures,
        }
        with open(f"{self._path}.part", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(f"{self._path}.part", self._path)

    def _figures(self) -> dict[str, Any]:
        cuda = self.torch.cuda
        error = getattr(sys, "last_value", None)
        used = range(cuda.device_count()) if cuda.is_initialized() else ()
        devices = [self._device(device) for device in used if self._peak(device)["reserved_bytes"]]
        return {
            "devices": devices,
            "resets": self._resets,
            "ended_by": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}" if error is not None else "",
            "snapshot": self._dump() if devices and self._records_history else "",
            "software": {"python": platform.python_version(), "torch": str(self.torch.__version__)}
            | ({"cuda": self.torch.version.cuda} if self.torch.version.cuda else {}),
            "allocator_conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        }

    def _device(self, device: int) -> dict[str, Any]:
        properties = self.torch.cuda.get_device_properties(device)
        uuid = str(getattr(properties, "uuid", ""))
        stats = self.torch.cuda.memory_stats(device)
        return {
            "index": device,
            "name": properties.name,
            "uuid": uuid,
            "total_bytes": properties.total_memory,
            "peak": self._peak(device),
            "end": {name: stats.get(f"{name}.all.current", 0) for name in _FIGURES},
            "cache_releases": stats.get("num_alloc_retries", 0),
            "device_bytes_at_end": _nvml_bytes(uuid),
        }

    def _peak(self, device: int) -> dict[str, int]:
        stats, before = self.torch.cuda.memory_stats(device), self._before.get(device, {})
        return {name: max(stats.get(f"{name}.all.peak", 0), before.get(name, 0)) for name in _FIGURES}

    def _dump(self) -> str:
        path = self._path.removesuffix(".json") + ".pickle"
        self.torch.cuda.memory._dump_snapshot(path)
        return os.path.basename(path)


def _nvml_bytes(uuid: str) -> int:
    """Of this process as the driver counts them; 0 where it does not."""
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "nvml.py")
    spec = importlib.util.spec_from_file_location("planner_nvml", path)
    if not uuid or spec is None or spec.loader is None:
        return 0
    nvml = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = nvml
    spec.loader.exec_module(nvml)
    return int(nvml.process_bytes(uuid))
