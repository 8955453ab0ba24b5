"""What a GPU's architecture decides about kernels: capability, threads, registers, shared memory.

Sources: CUDA C++ programming guide, technical specifications per compute capability. Names of torch's device
properties are given where they differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.units import KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture; 0 where no public document says it."""

    arch: str
    capability: tuple[int, int]
    reference_gpu: str
    """Whose multiprocessors are taken for all GPUs of the architecture: a trace is made for an architecture."""
    multiprocessors: int
    """multi_processor_count of the reference GPU."""
    threads_per_multiprocessor: int = 2048
    """max_threads_per_multi_processor."""
    registers_per_multiprocessor: int = 65536
    """regs_per_multiprocessor."""
    shared_memory_per_block_bytes: int = 0
    """shared_memory_per_block_optin."""
    warp_size: int = 32


_ALL = (
    Architecture(
        arch="sm_70", capability=(7, 0), reference_gpu="V100-SXM2-16GB", multiprocessors=80,
        shared_memory_per_block_bytes=96 * KIB,
    ),
    Architecture(
        arch="sm_75", capability=(7, 5), reference_gpu="T4-16GB", multiprocessors=40,
        threads_per_multiprocessor=1024, shared_memory_per_block_bytes=64 * KIB,
    ),
    Architecture(
        arch="sm_80", capability=(8, 0), reference_gpu="A100-SXM-40GB", multiprocessors=108,
        shared_memory_per_block_bytes=163 * KIB,
    ),
    Architecture(
        arch="sm_86", capability=(8, 6), reference_gpu="RTX3090-24GB", multiprocessors=82,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    Architecture(
        arch="sm_89", capability=(8, 9), reference_gpu="RTX4090-24GB", multiprocessors=128,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    Architecture(
        arch="sm_90", capability=(9, 0), reference_gpu="H100-SXM-80GB", multiprocessors=132,
        shared_memory_per_block_bytes=227 * KIB,
    ),
    Architecture(
        arch="sm_100", capability=(10, 0), reference_gpu="B200-SXM-180GB", multiprocessors=148,
        shared_memory_per_block_bytes=227 * KIB,
    ),
    Architecture(
        arch="sm_120", capability=(12, 0), reference_gpu="RTX5090-32GB", multiprocessors=170,
        threads_per_multiprocessor=1536, shared_memory_per_block_bytes=99 * KIB,
    ),
    # AMD's CDNA3 instruction set guide: wavefronts of 64, 64 KiB of LDS for a workgroup.
    Architecture(
        arch="gfx942", capability=(9, 4), reference_gpu="MI300X-192GB", multiprocessors=304,
        registers_per_multiprocessor=0, shared_memory_per_block_bytes=64 * KIB, warp_size=64,
    ),
)  # fmt: skip

ARCHITECTURES = {each.arch: each for each in _ALL}
