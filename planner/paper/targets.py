"""What a target architecture decides about kernels: capability, multiprocessors, workspaces."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES
from planner.units import KIB, MIB

_CUBLAS_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * KIB
"""`:4096:2:16:8`, in KiB times count. torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp, like those below."""
_LARGE_CUBLAS_WORKSPACE_BYTES = 32 * MIB
"""Hopper and Blackwell; up to torch 2.10 only sm_90 (pytorch/pytorch#175344 of 2026-02-19, as published runs show)."""
_BLACKWELL_SINCE = (2, 11)
_ALWAYS_CUDNN = (2, 9)


@dataclass(frozen=True, slots=True)
class Target:
    """Whose kernels are chosen: `sm_90`, ... or `cpu`, to stand beside runs on a CPU."""

    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    workspace_bytes: int
    threads_per_multiprocessor: int = 2048
    l2_cache_bytes: int = 0

    def prefers_cudnn_attention(self, cuda: str, torch: str) -> bool:
        """Data-centre Hopper and Blackwell do: under torch 2.9 where cuDNN is 9.9 or newer, as in all of its builds
        (10.3, of the B300, not yet); since 2.10 where it is newer than 9.15.0, in builds for CUDA 13. Before nothing
        does.

        Source: torch 2.9 and 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention;
        the variable that it reads, TORCH_CUDNN_SDPA_PREFERRED or _DEPRIORITIZED, names the rule in a build).
        """
        if not self.arch.startswith("sm_") or self.capability[0] not in (9, 10):
            return False
        release, major = _release(torch), int(cuda.partition(".")[0] or 0)
        if release == _ALWAYS_CUDNN:
            return self.capability[1] == 0
        return release > _ALWAYS_CUDNN and major >= 13

    @property
    def is_cpu(self) -> bool:
        return self.arch == "cpu"


def target_of(arch: str, torch: str = "") -> Target:
    """`arch` may name multiprocessors besides, of a MIG slice (`sm_90/16`). `torch` is the version that the job runs
    with (`2.10`), empty for the one that is installed.

    Raises TraceError for an architecture whose kernel choices are not known.
    """
    if arch == "cpu":
        return Target("cpu", (0, 0), 0, 0)
    arch, _, multiprocessors = arch.partition("/")
    known = ARCHITECTURES.get(arch)
    if known is None:
        raise TraceError(f"no kernel choices are known for {arch!r}", allowed=", ".join(("cpu", *ARCHITECTURES)))
    major = known.capability[0]
    workspace_bytes = _CUBLAS_WORKSPACE_BYTES
    if known.hipblas_workspace_bytes:
        workspace_bytes = known.hipblas_workspace_bytes
    elif major == 9 or (major > 9 and (not torch or _release(torch) >= _BLACKWELL_SINCE)):
        workspace_bytes = _LARGE_CUBLAS_WORKSPACE_BYTES
    return Target(
        known.arch, known.capability, int(multiprocessors or known.multiprocessors), workspace_bytes,
        known.threads_per_multiprocessor, known.l2_cache_bytes,
    )  # fmt: skip


def _release(torch: str) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.split(".")[:2])
