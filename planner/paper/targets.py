"""What a target architecture decides about kernels: capability, multiprocessors, workspaces.

Sources: CUDA C programming guide (capabilities, threads per multiprocessor), vendors' data sheets (multiprocessors),
torch 2.13 aten/src/ATen/cuda/CublasHandlePool.cpp (workspace sizes; in torch 2.6 only sm_90 took 32 MiB).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError

# `:4096:2:16:8`, in KiB times count: 2 * 4 MiB + 8 * 16 KiB
_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * 1024
# Hopper and Blackwell
_LARGE_WORKSPACE_BYTES = 32 * 1024 * 1024
_GFX94_WORKSPACE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Whose kernels are chosen: `sm_90`, ... or `cpu`, which is for tests against runs on a CPU."""

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


_TARGETS = {
    target.arch: target
    for target in (
        Target("cpu", (0, 0), 0, 0),
        Target("sm_70", (7, 0), 80, _WORKSPACE_BYTES),
        Target("sm_75", (7, 5), 40, _WORKSPACE_BYTES, 1024),
        Target("sm_80", (8, 0), 108, _WORKSPACE_BYTES),
        Target("sm_86", (8, 6), 82, _WORKSPACE_BYTES, 1536),
        Target("sm_89", (8, 9), 128, _WORKSPACE_BYTES, 1536),
        Target("sm_90", (9, 0), 132, _LARGE_WORKSPACE_BYTES),
        Target("sm_100", (10, 0), 148, _LARGE_WORKSPACE_BYTES),
        Target("sm_120", (12, 0), 170, _LARGE_WORKSPACE_BYTES, 1536),
        Target("gfx942", (9, 4), 304, _GFX94_WORKSPACE_BYTES),
    )
}


def target_of(arch: str) -> Target:
    """Raises TraceError for an architecture whose kernel choices are not known."""
    if arch not in _TARGETS:
        raise TraceError(f"no kernel choices are known for {arch!r}", allowed=", ".join(_TARGETS))
    return _TARGETS[arch]
