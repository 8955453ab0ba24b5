"""What processes hold without anything of the job: Python, PyTorch, libraries, CUDA's side of the host. Sizes are MiB.

Measured: torch 2.13.0 (CPU), transformers 5.13, DeepSpeed 0.19.8, Python 3.11.7, glibc 2.39, Linux 6.18, x86-64, one
thread, 2026-11-23; /proc/self/smaps_rollup (Anonymous, and Pss_File for files) after the imports and one step of AdamW
on a small model: `python tests/host/measure_processes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.units import MIB


@dataclass(frozen=True, slots=True)
class Fact:
    """MiB of one process: between which bounds, and the best guess; with its source."""

    low: float
    best: float
    high: float
    source: str

    @property
    def low_bytes(self) -> int:
        return round(self.low * MIB)

    @property
    def best_bytes(self) -> int:
        return round(self.best * MIB)

    @property
    def high_bytes(self) -> int:
        return round(self.high * MIB)


TORCH = Fact(180, 213, 320, "Python and PyTorch: measured, 213 MiB; another build or version may differ")
TRANSFORMERS = Fact(40, 56, 120, "transformers: measured, 56 MiB; with data sets and tokenizers more")
LIBRARY_FILES = Fact(60, 92, 1500, "libraries' pages, mapped from files: measured, 92 MiB of the CPU's; CUDA's more")
CUDA = Fact(
    114, 900, 1690,
    "CUDA's side of the host: not measured here; taken between a first tensor with kernels loaded lazily, 114 MiB, and"
    " with all kernels loaded, 1,689 MiB (pytorch/pytorch#113326), with the middle as the best guess: the share of NCCL"
    " and cuBLAS is not known",
)  # fmt: skip
WORKER = Fact(
    8, 19, 60, "a worker of a data loader that was forked: measured, 11 MiB to 19 MiB; what its code imports is more"
)
