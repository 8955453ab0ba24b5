"""What a target architecture decides about kernels: capability, multiprocessors, workspaces."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES, Architecture
from planner.units import KIB, MIB

_CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * KIB
"""`:4096:2:16:8`, in KiB times count. torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp, like those below."""
_LARGE_CUBLAS_WORKSPACE_BYTES = 32 * MIB
"""Hopper and Blackwell; in torch 2.6 only sm_90."""
_GFX94_HIPBLAS_WORKSPACE_BYTES = 128 * MIB


@dataclass(frozen=True, slots=True)
class Target:
    """Whose kernels are chosen: `sm_90`, ... or `cpu`, to stand beside runs on a CPU."""

    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    workspace_bytes: int
    threads_per_multiprocessor: int = 2048

    def prefers_cudnn_attention(self, cuda: str) -> bool:
        """Data-centre Hopper and Blackwell do, where cuDNN is newer than 9.15.0: in builds of torch for CUDA 13.

        Source: torch 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention).
        """
        major = int(cuda.partition(".")[0] or 0)
        return self.arch.startswith("sm_") and self.capability[0] in (9, 10) and major >= 13

    @property
    def is_cpu(self) -> bool:
        return self.arch == "cpu"


def target_of(arch: str) -> Target:
    """Raises TraceError for an architecture whose kernel choices are not known."""
    if arch == "cpu":
        return Target("cpu", (0, 0), 0, 0)
    known = ARCHITECTURES.get(arch)
    if known is None:
        raise TraceError(f"no kernel choices are known for {arch!r}", allowed=", ".join(("cpu", *ARCHITECTURES)))
    return Target(
        known.arch,
        known.capability,
        known.multiprocessors,
        _cublas_workspace_bytes(known),
        known.threads_per_multiprocessor,
    )


def _cublas_workspace_bytes(architecture: Architecture) -> int:
    if architecture.arch.startswith("gfx94"):
        return _GFX94_HIPBLAS_WORKSPACE_BYTES
    return _LARGE_CUBLAS_WORKSPACE_BYTES if architecture.capability[0] >= 9 else _CUBLAS_WORKSPACE_BYTES
