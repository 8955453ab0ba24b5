"""What the architecture of a GPU decides about kernels."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError
from planner.units import KIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a GPU's architecture decides about kernels; 0 where no public document says it.

    Sources: CUDA C++ programming guide, technical specifications per compute capability (the same figures are in CCCL,
    libcudacxx/include/cuda/__device/arch_traits.h); of AMD's GPUs the table of ROCm's documentation, docs/reference/
    gpu-arch-specs.rst. Names of torch's device properties are given where they differ.
    """

    arch: str
    capability: tuple[int, int]
    reference_gpu: str
    """The GPU whose multiprocessors stand for all of the architecture: a trace is made for an architecture."""
    multiprocessors: int
    """multi_processor_count of the reference GPU."""
    threads_per_multiprocessor: int = 2048
    """max_threads_per_multi_processor."""
    registers_per_multiprocessor: int = 65536
    """regs_per_multiprocessor."""
    shared_memory_per_block_bytes: int = 0
    """shared_memory_per_block_optin."""
    warp_size: int = 32
    hipblas_workspace_bytes: int = 0
    """Of a handle in ROCm builds of torch (torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp); 0 for NVIDIA's GPUs."""
    l2_cache_bytes: int
    """L2_cache_size of the reference GPU: deviceQuery of a GTX 1080 Ti (2883584 bytes), a T4 and an RTX 5090
    (NVIDIA/nccl#1637), a B200's 126.5 MiB in pytorch/ao#4002, a B300's of 148 multiprocessors in a public study, a P100
    in OpenXLA's target_config/specs/p100.txtpb, an MI300X as torch 2.6 says it (ROCm/legacy-rocm-build#4203), one half
    of an MI250X in ROCm's table, else the architectures' white papers."""


_ALL = (
    # A block of Pascal's GPUs has 48 KiB and no more to opt in to; no tensor cores, and no bfloat16.
    Architecture(
        arch="sm_60", capability=(6, 0), reference_gpu="P100-PCIE-16GB", multiprocessors=56, l2_cache_bytes=4 * MIB,
        shared_memory_per_block_bytes=48 * KIB,
    ),
    Architecture(
        arch="sm_61", capability=(6, 1), reference_gpu="GTX1080Ti-11GB", multiprocessors=28,
        l2_cache_bytes=2816 * KIB, shared_memory_per_block_bytes=48 * KIB,
    ),
    Architecture(
        arch="sm_70", capability=(7, 0), reference_gpu="V100-SXM2-16GB", multiprocessors=80, l2_cache_bytes=6 * MIB,
        shared_memory_per_block_bytes=96 * KIB,
    ),
    Architecture(
        arch="sm_75", capability=(7, 5), reference_gpu="T4-16GB", multiprocessors=40, l2_cache_bytes=4 * MIB,
        threads_per_multiprocessor=1024, shared_memory_per_block_bytes=64 * KIB,
    ),
    Architecture(
        arch="sm_80", capability=(8, 0), reference_gpu="A100-SXM-40GB", multiprocessors=108, l2_cache_bytes=40 * MIB,
        shared_memory_per_block_bytes=163 * KIB,
    ),
    Architecture(
        arch="sm_86", capability=(8, 6), reference_gpu="RTX3090-24GB", multiprocessors=82, l2_cache_bytes=6 * MIB,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    Architecture(
        arch="sm_89", capability=(8, 9), reference_gpu="RTX4090-24GB", multiprocessors=128, l2_cache_bytes=72 * MIB,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    Architecture(
        arch="sm_90", capability=(9, 0), reference_gpu="H100-SXM-80GB", multiprocessors=132, l2_cache_bytes=50 * MIB,
        shared_memory_per_block_bytes=227 * KIB,
    ),
    Architecture(
        arch="sm_100", capability=(10, 0), reference_gpu="B200-SXM-180GB", multiprocessors=148,
        l2_cache_bytes=253 * MIB // 2, shared_memory_per_block_bytes=227 * KIB,
    ),
    Architecture(
        arch="sm_103", capability=(10, 3), reference_gpu="B300-SXM-288GB", multiprocessors=148,
        l2_cache_bytes=253 * MIB // 2, shared_memory_per_block_bytes=227 * KIB,
    ),
    Architecture(
        arch="sm_120", capability=(12, 0), reference_gpu="RTX5090-32GB", multiprocessors=170, l2_cache_bytes=96 * MIB,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    Architecture(
        arch="sm_121", capability=(12, 1), reference_gpu="GB10-128GB", multiprocessors=48, l2_cache_bytes=24 * MIB,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    # AMD's CDNA2 and CDNA3 instruction set guides: wavefronts of 64, 64 KiB of LDS for a workgroup. Threads: OpenXLA's
    # target_config/specs/mi200.txtpb. Capabilities are what ROCm builds of torch say.
    Architecture(
        arch="gfx90a", capability=(9, 0), reference_gpu="MI250X-64GB", multiprocessors=110, l2_cache_bytes=8 * MIB,
        registers_per_multiprocessor=0, shared_memory_per_block_bytes=64 * KIB, warp_size=64,
        hipblas_workspace_bytes=32 * MIB,
    ),
    Architecture(
        arch="gfx942", capability=(9, 4), reference_gpu="MI300X-192GB", multiprocessors=304, l2_cache_bytes=4 * MIB,
        registers_per_multiprocessor=0, shared_memory_per_block_bytes=64 * KIB, warp_size=64,
        hipblas_workspace_bytes=128 * MIB,
    ),
)  # fmt: skip

ARCHITECTURES = {architecture.arch: architecture for architecture in _ALL}


def find_architecture(arch: str) -> Architecture:
    """`arch` may name multiprocessors besides, of a MIG slice (`sm_90/16`).

    Raises TraceError for an architecture that is not known.
    """
    name = arch.partition("/")[0]
    if name not in ARCHITECTURES:
        raise TraceError(f"the architecture {name!r} is not known", allowed=", ".join(ARCHITECTURES))
    return ARCHITECTURES[name]
