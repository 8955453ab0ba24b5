"""What a rank's process holds before anything of the job: Python, PyTorch, libraries, CUDA's side of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.host_events import Backing, HostBlock, HostCategory
from planner.units import MIB


# Measured: torch 2.13.0 (CPU), transformers 5.13, DeepSpeed 0.19.8, Python 3.11.7, glibc 2.39, Linux 6.18, x86-64, one
# thread, 2026-11-23; /proc/self/smaps_rollup (Anonymous, and Pss_File for files) after the imports and one step of
# AdamW on a small model: `python tests/host/measure_processes.py`.
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


SUMMED = "Ranks of a node are summed as they stand in the same phase; the upper end has each at its highest point."
PINNED = (
    "Pinned memory as torch 2.13's CachingHostAllocator takes it: blocks rounded up to powers of two unless"
    " PYTORCH_ALLOC_CONF says otherwise, kept when they are given up; it counts as resident."
)


def workers_sentence() -> str:
    """On whose word a data loader's workers are counted."""
    return f"{as_sentence(WORKER.source)} Besides, each keeps the samples of one batch."


def process_facts(*, transformers: bool) -> list[Fact]:
    """What is known of the parts of a process that trains on a GPU."""
    return [TORCH, CUDA, TRANSFORMERS] if transformers else [TORCH, CUDA]


def process_blocks(facts: Sequence[Fact]) -> Iterator[HostBlock]:
    """The parts as blocks, and the libraries' pages, which the processes of a node share."""
    for fact, name in zip(facts, ("Python and PyTorch", "CUDA", "transformers"), strict=False):
        yield HostBlock(bytes=fact.best_bytes, category=HostCategory.PROCESS, name=name)
    files = LIBRARY_FILES.best_bytes
    yield HostBlock(bytes=files, category=HostCategory.PROCESS, backing=Backing.FILE, name="libraries")


def process_margins(facts: Sequence[Fact]) -> tuple[int, int]:
    """How many bytes fewer, and more, the parts may take."""
    fewer = sum(fact.best_bytes - fact.low_bytes for fact in facts)
    more = sum(fact.high_bytes - fact.best_bytes for fact in facts)
    return fewer, more


def as_sentence(said: str) -> str:
    """With a capital and a full stop."""
    return f"{said[0].upper()}{said[1:]}."
