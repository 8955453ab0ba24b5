"""What a target architecture decides about kernels: capability, multiprocessors, workspaces.

Sources: CUDA C programming guide (capabilities), vendors' data sheets (multiprocessors), torch 2.13
aten/src/ATen/cuda/CublasHandlePool.cpp (workspace sizes).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError

# `:4096:2:16:8`, in KiB times count: 2 * 4 MiB + 8 * 16 KiB
_WORKSPACE_BYTES = (4096 * 2 + 16 * 8) * 1024
_HOPPER_WORKSPACE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Whose kernels are chosen: `sm_90`, ... or `cpu`, which is for tests against runs on a CPU."""

    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    workspace_bytes: int

    @property
    def is_cpu(self) -> bool:
        return self.arch == "cpu"


_TARGETS = {
    target.arch: target
    for target in (
        Target("cpu", (0, 0), 0, 0),
        Target("sm_70", (7, 0), 80, _WORKSPACE_BYTES),
        Target("sm_75", (7, 5), 40, _WORKSPACE_BYTES),
        Target("sm_80", (8, 0), 108, _WORKSPACE_BYTES),
        Target("sm_86", (8, 6), 82, _WORKSPACE_BYTES),
        Target("sm_89", (8, 9), 128, _WORKSPACE_BYTES),
        Target("sm_90", (9, 0), 132, _HOPPER_WORKSPACE_BYTES),
        Target("sm_100", (10, 0), 148, _HOPPER_WORKSPACE_BYTES),
        Target("sm_120", (12, 0), 170, _WORKSPACE_BYTES),
        Target("gfx942", (9, 4), 304, _WORKSPACE_BYTES),
    )
}


def target_of(arch: str) -> Target:
    """Raises TraceError for an architecture whose kernel choices are not known."""
    if arch not in _TARGETS:
        raise TraceError(f"no kernel choices are known for {arch!r}", allowed=", ".join(_TARGETS))
    return _TARGETS[arch]
