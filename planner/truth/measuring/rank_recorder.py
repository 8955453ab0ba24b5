"""Writes what one process of a program took of each GPU: a file when torch is imported, the figures when it ends.

It is loaded by its path into a process that may not have planner, so it needs Python's library and torch alone; in the
program of a job `planner.truth.measuring.job_rank` adds phases and roles. Keys of `torch.cuda.memory_stats` are those
of torch 2.1 to 2.13 (torch/cuda/memory.py).
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
JOB = "PLANNER_MEASURE_JOB"
"""What the rank of a job is measured as, in JSON (`job_rank.Setting`)."""
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_FIGURES = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
_RESET = "reset_peak_memory_stats"
_RESETTERS = ("torch.cuda", "torch.cuda.memory", "torch.accelerator", "torch.accelerator.memory")


def begin(folder: str) -> None:
    """Called once, when torch has been imported. `folder` is where the file of this process goes."""
    recorder = Recorder(sys.modules["torch"], folder)
    recorder.write({})
    recorder.keep_peaks()
    if os.environ.get(SNAPSHOTS):
        # Before CUDA is in use nothing may touch it: the program has yet to choose its device, or forks.
        recorder.torch.cuda._lazy_call(recorder.record_history)
    atexit.register(recorder.end)
    if os.environ.get(JOB):
        try:
            from planner.truth.measuring import job_rank

            recorder.job = job_rank.begin(recorder, json.loads(os.environ[JOB]))
        except Exception as error:
            sys.last_value = error
            raise SystemExit(1) from error


class Recorder:
    """Follows the allocator of each GPU by its counters; it allocates nothing there."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch = torch
        self.job: Any = None
        """What `job_rank` adds in the program of a job."""
        self.driver = _nvml().Driver(torch)
        self.now = ("load", 0)
        """The phase that is running, and its iteration."""
        self._path = os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}.json")
        self._process = os.getpid()
        self._reset = getattr(torch.cuda, _RESET)
        self._phases: dict[int, list[dict[str, Any]]] = {}
        self._before: dict[int, dict[str, int]] = {}
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
            self._before = {device: self._peak(device) for device in self._devices()}
            return reset(*args, **kwargs)

        return wrapper

    def mark(self, phase: str, iteration: int) -> None:
        """A phase begins, and the one before it has ended."""
        self._end_phase()
        self.now = (str(phase), iteration)

    def _end_phase(self) -> None:
        for device in self._devices():
            stats, peak = self.torch.cuda.memory_stats(device), self._peak(device)
            if not peak["reserved_bytes"]:
                continue
            phase, iteration = self.now
            end = {name: stats.get(f"{name}.all.current", 0) for name in _FIGURES}
            self._phases.setdefault(device, []).append(
                {
                    "phase": phase,
                    "iteration": iteration,
                    "peak": peak,
                    "end": end,
                    "device_bytes": self.driver.read_bytes(device),
                }
            )
            self._reset(device)
        self._before = {}

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
            error = getattr(sys, "last_value", None)
            figures = self._figures(error)
            if self.job is not None:
                figures |= self.job.figures(error)
            self.write(figures)
            if self.job is not None:
                self.job.leave(error)
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

    def _figures(self, error: BaseException | None) -> dict[str, Any]:
        self._end_phase()
        first_line = str(error).partition("\n")[0]
        out_of_memory = None
        if type(error).__name__ == "OutOfMemoryError":
            out_of_memory = {"phase": self.now[0], "iteration": self.now[1], "message": first_line}
        return {
            "devices": [self._device(device) for device in self._phases],
            "device_bytes_by": self.driver.counted_by,
            "ended_by": f"{type(error).__name__}: {first_line}" if error is not None else "",
            "problem": getattr(error, "parts", {}) if os.environ.get(JOB) else {},
            "out_of_memory": out_of_memory,
            "snapshot": self._dump() if self._phases and self._records_history else "",
            "software": {"python": platform.python_version(), "torch": str(self.torch.__version__)}
            | ({"cuda": self.torch.version.cuda} if self.torch.version.cuda else {}),
            "allocator_conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
        }

    def _device(self, device: int) -> dict[str, Any]:
        stats = self.torch.cuda.memory_stats(device)
        return {
            "facts": _nvml().describe_gpu(self.torch, device),
            "phases": self._phases[device],
            "memory_stats": {name: value for name, value in stats.items() if isinstance(value, int)},
        }

    def _devices(self) -> range:
        cuda = self.torch.cuda
        return range(cuda.device_count() if cuda.is_initialized() else 0)

    def _peak(self, device: int) -> dict[str, int]:
        stats, before = self.torch.cuda.memory_stats(device), self._before.get(device, {})
        return {name: max(stats.get(f"{name}.all.peak", 0), before.get(name, 0)) for name in _FIGURES}

    def _dump(self) -> str:
        path = self._path.removesuffix(".json") + ".pickle"
        self.torch.cuda.memory._dump_snapshot(path)
        return os.path.basename(path)


@functools.cache
def _nvml() -> Any:
    path = os.path.join(os.path.dirname(os.path.realpath(__file__)), "nvml.py")
    spec = importlib.util.spec_from_file_location("planner_nvml", path)
    assert spec is not None
    assert spec.loader is not None
    nvml = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = nvml
    spec.loader.exec_module(nvml)
    return nvml
