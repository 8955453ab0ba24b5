"""What one comparison of a plan with a measurement teaches, as plain figures."""

from __future__ import annotations

from dataclasses import dataclass

from planner.facts.versions import minor_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Predicted beside measured, for one rank of one case on one GPU; all sizes are bytes.

    `gpu` is the name that jobs use, so that of the catalog. Predicted figures are those of a plan without a
    calibration: learning from what was already corrected would forget the correction. None is what was not measured.
    The context is all that a process holds outside the allocator without NCCL: the images of its kernels too.
    `predicted_nccl_bytes` is 0 where the peers were absent.
    """

    gpu: str
    torch: str
    cuda: str = ""
    world_size: int = 1
    case: str = ""
    predicted_reserved_bytes: int
    measured_reserved_bytes: int
    predicted_context_bytes: int = 0
    measured_context_bytes: int | None = None
    predicted_nccl_bytes: int = 0
    measured_nccl_bytes: int | None = None
    measured_device_bytes: int | None = None
    """What NVML shows for this process at its highest."""
    device_total_bytes: int = 0
    """0: not known."""
    predicted_out_of_memory: bool = False
    measured_out_of_memory: bool = False
    date: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """What shares corrections: the GPU, and torch's major and minor version."""
        return self.gpu, minor_of(self.torch)

    @property
    def measured_outside_bytes(self) -> int | None:
        """All that the process held outside the allocator."""
        if self.measured_device_bytes is None:
            return None
        return self.measured_device_bytes - self.measured_reserved_bytes


def make_observation(
    *,
    gpu: str,
    torch: str,
    cuda: str = "",
    world_size: int = 1,
    case: str = "",
    reserved_bytes: tuple[int, int],
    predicted_context_bytes: int = 0,
    predicted_nccl_bytes: int = 0,
    device_bytes: int = 0,
    device_bytes_by: str = "process",
    device_total_bytes: int = 0,
    peers: str = "none",
    predicted_out_of_memory: bool = False,
    measured_out_of_memory: bool = False,
    date: str = "",
) -> Observation:
    """An observation from the figures of an uncalibrated plan and of a measurement, named as there.

    `reserved_bytes` are predicted and measured. Device bytes count only if they are those of the process
    (`device_bytes_by`); less the reserved bytes they are the context where no peers are present, and context and
    NCCL together where they are: learning takes those apart. 0 device bytes: not measured.
    A measurement's own `context_bytes` are no use here: they are taken before any kernel is loaded.
    """
    predicted, measured = reserved_bytes
    held = device_bytes if device_bytes and device_bytes_by == "process" else None
    nccl = predicted_nccl_bytes if peers == "present" else 0
    alone = peers != "present" and predicted_context_bytes > 0
    return Observation(
        gpu=gpu,
        torch=torch,
        cuda=cuda,
        world_size=world_size,
        case=case,
        predicted_reserved_bytes=predicted,
        measured_reserved_bytes=measured,
        predicted_context_bytes=predicted_context_bytes,
        measured_context_bytes=held - measured if held is not None and alone else None,
        predicted_nccl_bytes=nccl,
        measured_device_bytes=held,
        device_total_bytes=device_total_bytes,
        predicted_out_of_memory=predicted_out_of_memory,
        measured_out_of_memory=measured_out_of_memory,
        date=date,
    )
