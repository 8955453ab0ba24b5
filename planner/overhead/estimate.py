"""What a process of this GPU, software and communicators will hold outside the caching allocator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.hardware.catalog import is_model
from planner.hardware.gpus import GPUS
from planner.job.schema import Gpu, Software
from planner.overhead import table
from planner.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideEstimate:
    """Bytes outside the allocator: the best estimate, and between which totals the truth should lie.

    `cuda_context_bytes` has the images of lazily loaded kernels in it. `provenance` are sentences for people.
    """

    cuda_context_bytes: int
    nccl_bytes: int
    low_bytes: int
    high_bytes: int
    calibrated: bool = False
    provenance: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return self.cuda_context_bytes + self.nccl_bytes


@dataclass(frozen=True, slots=True)
class _Range:
    """MiB: low, best, high."""

    low: float
    best: float
    high: float
    source: str


_CONTEXTS = [(gpu, gpu.context) for gpu in GPUS if gpu.context is not None]
_COMMUNICATORS = [(gpu, fact) for gpu in GPUS for fact in gpu.communicators]


def outside(gpu: Gpu, software: Software, communicators: Sequence[int]) -> OutsideEstimate:
    """The best estimate for one process, and its honest margin.

    `communicators` are the sizes of the NCCL communicators of which the process is a member; those of one rank, and
    so a job of a single process, take nothing. Nothing here is measured on the job's own cluster, so it is never
    calibrated.
    """
    context = _context(gpu, software)
    groups = [size for size in sorted(communicators, reverse=True) if size > 1]
    nccl = [_communicator(gpu, size, further=index > 0) for index, size in enumerate(groups)]
    images = _Range(
        table.KERNEL_IMAGES_SMALLEST,
        table.KERNEL_IMAGES,
        table.KERNEL_IMAGES_LARGEST,
        "kernel images, loaded with their first use: vllm-project/vllm#12126, pytorch/pytorch#86509",
    )
    parts = [context, images, *nccl]
    return OutsideEstimate(
        cuda_context_bytes=_bytes(context.best) + _bytes(images.best),
        nccl_bytes=sum(_bytes(each.best) for each in nccl),
        low_bytes=sum(_bytes(each.low) for each in parts),
        high_bytes=sum(_bytes(each.high) for each in parts),
        provenance=tuple(dict.fromkeys(each.source for each in parts)),
    )


def _context(gpu: Gpu, software: Software) -> _Range:
    asked = f"torch {software.torch}, CUDA {software.cuda}"
    for known, fact in _CONTEXTS:
        if is_model(gpu.name, known.model):
            source = f"CUDA context of {known.model}, measured with {fact.software} (asked for: {asked}): {fact.source}"
            return _Range(fact.smallest * 0.9, fact.usual, fact.largest * 1.1, source)
    known, fact = min(_CONTEXTS, key=lambda each: _distance(gpu.arch, each[0].arch))
    low, high = table.SAME_ARCHITECTURE if known.arch == gpu.arch else table.ANOTHER_ARCHITECTURE
    source = (
        f"CUDA context of {gpu.name or gpu.arch or 'this GPU'} is not measured: "
        f"taken from {known.model} ({known.arch}), the nearest; {fact.source}"
    )
    return _Range(fact.smallest * low, fact.usual, fact.largest * high, source)


def _communicator(gpu: Gpu, ranks: int, *, further: bool) -> _Range:
    exact = [each for each in _COMMUNICATORS if is_model(gpu.name, each[0].model)]
    known, fact = min(
        exact or _COMMUNICATORS,
        key=lambda each: (_differs(each[1].ranks, ranks), _distance(gpu.arch, each[0].arch)),
    )
    if exact and not _differs(fact.ranks, ranks):
        source = f"NCCL, measured on {known.model} with {fact.ranks} ranks, {fact.software}: {fact.source}"
        low, high = 0.9, 1.1
    else:
        source = f"NCCL among {ranks} ranks of {gpu.name or 'this GPU'} is not measured: taken from {known.model} with "
        source += f"{fact.ranks} ranks; {fact.source}"
        low, high = table.OTHER_LINKS
    if further:
        low = min(low, table.FURTHER_COMMUNICATOR_SMALLEST)
    return _Range(fact.smallest * low, fact.usual, fact.largest * high, source)


def _differs(measured: int, asked: int) -> bool:
    """Two ranks need fewer connections than more do; beyond that the size hardly matters (NVIDIA/nccl#964, #986)."""
    return (measured > 2) != (asked > 2)


_HBM = {70, 80, 90, 100, 103}
"""Architectures of data centre GPUs: wide ones, whose context is larger than that of their smaller siblings."""


def _distance(asked: str, measured: str) -> tuple[bool, int]:
    """First the same kind of GPU, then the nearest number."""
    digits = re.fullmatch(r"sm_(\d+)[a-z]*", asked)
    number, other = int(digits[1]) if digits else 90, int(measured.removeprefix("sm_"))
    return ((number in _HBM) != (other in _HBM), abs(number - other))


def _bytes(mib: float) -> int:
    return round(mib) * MIB
