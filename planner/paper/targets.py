"""What a target architecture decides: the capability and the multiprocessors of the GPU whose kernels run."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES

_ALWAYS_CUDNN = (2, 9)


@dataclass(frozen=True, slots=True)
class Target:
    """Of one architecture (`sm_90`)."""

    arch: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int = 2048

    def prefers_cudnn_attention(self, cuda: str, torch: str) -> bool:
        """Data-centre Hopper and Blackwell do: under torch 2.9 where cuDNN is 9.9 or newer, as in all of its builds
        (10.3, of the B300, not yet); since 2.10 where it is newer than 9.15.0, in builds for CUDA 13. Before nothing
        does.

        Source: torch 2.9 and 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention;
        the variable that it reads, TORCH_CUDNN_SDPA_PREFERRED or _DEPRIORITIZED, names the rule in a build).
        """
        if not self.arch.startswith("sm_") or self.capability[0] not in (9, 10):
            return False
        release, major = tuple(map(int, torch.split(".")[:2])), int(cuda.partition(".")[0] or 0)
        if release == _ALWAYS_CUDNN:
            return self.capability[1] == 0
        return release > _ALWAYS_CUDNN and major >= 13


def target_of(arch: str) -> Target:
    """`arch` may name multiprocessors besides, of a MIG slice (`sm_90/16`).

    Raises TraceError for an architecture that is not known.
    """
    name, _, multiprocessors = arch.partition("/")
    known = ARCHITECTURES.get(name)
    if known is None:
        raise TraceError(f"the architecture {name!r} is not known", allowed=", ".join(ARCHITECTURES))
    number = int(multiprocessors or known.multiprocessors)
    return Target(known.arch, known.capability, number, known.threads_per_multiprocessor)


_target = target_of("sm_90")


def target() -> Target:
    """That of the trace that is made."""
    return _target


def choose(new: Target) -> None:
    global _target
    _target = new
