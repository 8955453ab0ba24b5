"""Estimates what a process holds outside the caching allocator, from measured facts. Sizes in tables are MiB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.hardware.catalog import by_name, is_model
from planner.hardware.gpus import GPUS
from planner.job.layout import Mesh
from planner.job.schema import Gpu, Job, Software
from planner.units import MIB
from planner.versions import minor_of


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
    has_handle = int(minor_of(software.cuda).partition(".")[0] or 0) >= CUBLAS_HANDLE_SINCE
    images = _Range(
        KERNEL_IMAGES_SMALLEST,
        KERNEL_IMAGES,
        KERNEL_IMAGES_LARGEST + (CUBLAS_HANDLE if has_handle else 0),
        "kernel images, loaded with their first use: vllm-project/vllm#12126, pytorch/pytorch#86509",
    )
    parts = [context, images, *nccl]
    return OutsideEstimate(
        cuda_context_bytes=_bytes(context.best) + _bytes(images.best),
        nccl_bytes=sum(_bytes(part.best) for part in nccl),
        low_bytes=sum(_bytes(part.low) for part in parts),
        high_bytes=sum(_bytes(part.high) for part in parts),
        provenance=tuple(dict.fromkeys(part.source for part in parts)),
    )


def _context(gpu: Gpu, software: Software) -> _Range:
    asked = f"torch {software.torch}, CUDA {software.cuda}"
    part = by_name(gpu.name) if gpu.name else None
    if part is not None and part.slice:
        whole = _context(Gpu(name=part.whole, arch=part.arch), software)
        source = f"CUDA context of a MIG slice is not measured: taken to be that of the whole GPU; {whole.source}"
        return _Range(whole.low * SLICE_SMALLEST, whole.best, whole.high, source)
    for known, fact in _CONTEXTS:
        if is_model(gpu.name, known.model):
            source = f"CUDA context of {known.model}, measured with {fact.software} (asked for: {asked}): {fact.source}"
            return _Range(fact.smallest * 0.9, fact.usual, fact.largest * 1.1, source)
    known, fact = min(_CONTEXTS, key=lambda known: _distance(gpu.arch, known[0].arch))
    low, high = SAME_ARCHITECTURE if known.arch == gpu.arch else ANOTHER_ARCHITECTURE
    source = (
        f"CUDA context of {gpu.name or gpu.arch or 'this GPU'} is not measured: "
        f"taken from {known.model} ({known.arch}), the nearest; {fact.source}"
    )
    return _Range(fact.smallest * low, fact.usual, fact.largest * high, source)


def _communicator(gpu: Gpu, ranks: int, *, further: bool) -> _Range:
    exact = [known for known in _COMMUNICATORS if is_model(gpu.name, known[0].model)]
    known, fact = min(
        exact or _COMMUNICATORS,
        key=lambda known: (_differs(known[1].ranks, ranks), _distance(gpu.arch, known[0].arch)),
    )
    if exact and not _differs(fact.ranks, ranks):
        source = f"NCCL, measured on {known.model} with {fact.ranks} ranks, {fact.software}: {fact.source}"
        low, high = 0.9, 1.1
        if ranks > fact.ranks:
            as_large = [other for other in _COMMUNICATORS if other[1].ranks >= ranks]
            largest, of = max(
                ((other.largest * high, f"{gpu.model}'s") for gpu, other in as_large),
                default=(LARGEST_COMMUNICATOR, LARGEST_COMMUNICATOR_SOURCE),
            )
            source += f"; of {ranks} ranks up to {largest:.0f} MiB ({of})"
            high = max(high, largest / fact.largest)
    else:
        source = f"NCCL among {ranks} ranks of {gpu.name or 'this GPU'} is not measured: taken from {known.model} with "
        source += f"{fact.ranks} ranks; {fact.source}"
        low, high = OTHER_LINKS
    if further:
        low = min(low, FURTHER_COMMUNICATOR_SMALLEST)
    return _Range(fact.smallest * low, fact.usual, fact.largest * high, source)


def _differs(measured: int, asked: int) -> bool:
    """Two ranks need fewer connections than more do (NVIDIA/nccl#964)."""
    return (measured > 2) != (asked > 2)


_HBM = {60, 70, 80, 90, 100, 103}
"""Architectures of data centre GPUs: wide ones, whose context is larger than that of their smaller siblings."""


def _distance(asked: str, measured: str) -> tuple[bool, int]:
    """First the same kind of GPU, then the nearest number."""
    digits = re.fullmatch(r"sm_(\d+)[a-z]*", asked)
    number, other = int(digits[1]) if digits else 90, int(measured.removeprefix("sm_"))
    return ((number in _HBM) != (other in _HBM), abs(number - other))


def _bytes(mib: float) -> int:
    return round(mib) * MIB


# Bare contexts and NCCL's communicators are measured facts of GPUs (planner/hardware/gpus.toml). On top of a context
# come the images of the kernels that the program uses: since CUDA 11.7 they are loaded lazily, with their first use
# (`CUDA_MODULE_LOADING=LAZY`, set by torch itself since 1.13, pytorch/pytorch#86509).
KERNEL_IMAGES = 164
"""Grown outside the allocator between the bare context and a running model: 0.16 GiB, vllm-project/vllm#12126,
H100, an 11B vision and language model run eagerly."""
KERNEL_IMAGES_SMALLEST = 32
"""A guess for a model of few kernels; nothing smaller than one library's images was seen."""
KERNEL_IMAGES_LARGEST = 362
"""All of torch's kernels at once instead of lazily: 666,632,192 less 287,047,680 bytes, pytorch/pytorch#86509."""

CUBLAS_HANDLE, CUBLAS_HANDLE_SINCE = 65, 13
"""What cuBLAS 13.0 took of a driver that stands in for CUDA's, when a handle was made: 64 MiB, 128 and 1 KiB outside
of torch's allocator. No GPU has shown it, so that only the upper end has it."""

SAME_ARCHITECTURE = (0.40, 1.30)
ANOTHER_ARCHITECTURE = (0.35, 1.60)
"""How far a context may be from that of the GPU it is taken from. Not measured: between the GPUs of the table the
context is 3.0 to 4.7 MiB per multiprocessor, and GPUs of one architecture differ by as much as 2.5 in their number."""

SLICE_SMALLEST = 0.2
"""Of the whole GPU's context, that of a slice at least; it has fewer multiprocessors, so it never has more. A guess: a
process with 14 of an A100's 108 multiprocessors held 153 MiB with what it allocated (NVIDIA's MIG user guide, getting
started with MIG: BlackScholes in a 1c.3g.20gb, CUDA 11)."""

OTHER_LINKS = (0.25, 1.30)
"""How far a communicator may be from one on another GPU or of another size. Not measured: NCCL's buffers are
proportional to its channels, and a PCIe machine opens a quarter of an NVLink machine's (NVIDIA/nccl#986)."""
LARGEST_COMMUNICATOR = 2048
"""Of more ranks than were measured: three took 6 GB. With ranks of another node come the network's buffers (512 MiB in
NVIDIA/nccl#2363) and other algorithms; beyond two nodes it should not grow (NVIDIA/nccl#986)."""
LARGEST_COMMUNICATOR_SOURCE = "NVIDIA/nccl#864"
FURTHER_COMMUNICATOR_SMALLEST = 0.10
"""A communicator split off another one may share its buffers (NVIDIA/nccl#986)."""


def outside_of(job: Job) -> OutsideEstimate:
    """What lives outside the allocator, before any calibration: a communicator for each axis of more than one."""
    return outside(job.cluster.gpu, job.software, communicators_of(job))


def communicators_of(job: Job) -> list[int]:
    """The sizes of the groups of which a rank is a member."""
    return [degree for degree in Mesh.of(job.parallel).degrees if degree > 1]
