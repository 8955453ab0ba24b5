"""What one comparison with a measurement teaches, and measurements from which nothing is learnt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.job.overhead import OutsideEstimate
from planner.truth.measuring.measurement_lines import Measurement
from planner.units import show_bytes
from planner.versions import minor_of


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
    predicted_out_of_memory: bool = False
    measured_out_of_memory: bool = False
    date: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """What shares corrections: the GPU, and torch's major and minor version."""
        return self.gpu, minor_of(self.torch)

    @property
    def measured_outside_bytes(self) -> int | None:
        if self.measured_device_bytes is None:
            return None
        return self.measured_device_bytes - self.measured_reserved_bytes


def make_observation(
    *,
    reserved_bytes: tuple[int, int],
    predicted_context_bytes: int = 0,
    predicted_nccl_bytes: int = 0,
    device_bytes: int = 0,
    device_bytes_by: str = "process",
    peers: str = "none",
    **others: Any,
) -> Observation:
    """An observation from the figures of an uncalibrated plan and of a measurement, named as there; `others` as they
    are.

    `reserved_bytes` are predicted and measured. Device bytes count only if they are those of the process
    (`device_bytes_by`); less the reserved bytes they are the context where no peers are present, and context and
    NCCL together where they are: learning takes those apart. 0 device bytes: not measured.
    """
    predicted, measured = reserved_bytes
    held = device_bytes if device_bytes and device_bytes_by == "process" else None
    alone = peers != "present" and predicted_context_bytes > 0
    return Observation(
        predicted_reserved_bytes=predicted,
        measured_reserved_bytes=measured,
        predicted_context_bytes=predicted_context_bytes,
        measured_context_bytes=held - measured if held is not None and alone else None,
        predicted_nccl_bytes=predicted_nccl_bytes if peers == "present" else 0,
        measured_device_bytes=held,
        **others,
    )


def observe(
    measurement: Measurement, *, gpu: str, predicted_reserved_bytes: int, around: OutsideEstimate, **others: Any
) -> Observation:
    """What a measurement teaches beside the figures of an uncalibrated plan, `around` those outside of the allocator;
    `others` as they are."""
    return make_observation(
        gpu=gpu,
        torch=measurement.software.get("torch", ""),
        cuda=measurement.software.get("cuda", ""),
        world_size=measurement.world_size,
        reserved_bytes=(predicted_reserved_bytes, measurement.peak.reserved_bytes),
        predicted_context_bytes=around.cuda_context_bytes,
        predicted_nccl_bytes=around.nccl_bytes,
        device_bytes=max((phase.device_bytes for phase in measurement.phases), default=0),
        device_bytes_by=measurement.device_bytes_by,
        device_total_bytes=measurement.device.total_bytes,
        peers=measurement.peers,
        measured_out_of_memory=measurement.out_of_memory is not None,
        date=measurement.date,
        **{"case": measurement.case, **others},
    )


MOST_RESERVED_RATIO = 3
MOST_OUTSIDE_RATIO = 10
"""Predicted and measured further apart than this are not of the same program. The worst published peak that planner
missed is off by 17.5 % (docs/results/accuracy.md); NCCL on a PCIe machine takes a tenth of what it does on NVLink."""

OUTLIER_RESERVED = 0.25
OUTLIER_OUTSIDE = 0.75
"""How far from the median of its group a residual may lie. Fixed and wide: what planner gets wrong for a kind of model
has to widen the interval, not to disappear from it."""

FEWEST_FOR_OUTLIERS = 5
MOST_OUTLIERS = 0.2
"""If more than a fifth of a group are outliers, they are how things are, and none is quarantined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedObservation:
    """A measurement that taught nothing, and the reason, for people."""

    observation: Observation
    reason: str


def fault_of(observation: Observation) -> str:
    """Why a measurement is broken by itself; empty if it is not."""
    if not observation.gpu:
        return "it names no GPU"
    if not observation.group[1]:
        return f"{observation.torch!r} is not a version of torch"
    if observation.measured_out_of_memory:
        return "the measured step ran out of memory"
    if observation.predicted_out_of_memory:
        return "the predicted step ran out of memory, so its figures are those of a larger device"
    reserved, total = observation.measured_reserved_bytes, observation.device_total_bytes
    if fault := ratio_fault("reserved", observation.predicted_reserved_bytes, reserved, MOST_RESERVED_RATIO):
        return fault
    if total < 0:
        return f"the device's size is {total}"
    for name, held in (("reserved", reserved), ("device", observation.measured_device_bytes or 0)):
        if total and held > total:
            return f"measured {name} bytes, {show_bytes(held)}, are more than the device has, {show_bytes(total)}"
    if observation.measured_outside_bytes is not None and observation.measured_outside_bytes <= 0:
        return "measured device bytes are no more than the reserved bytes"
    for name, predicted, measured in (
        ("context", observation.predicted_context_bytes, observation.measured_context_bytes),
        ("NCCL", observation.predicted_nccl_bytes, observation.measured_nccl_bytes),
    ):
        if measured is not None and (fault := ratio_fault(name, predicted, measured, MOST_OUTSIDE_RATIO)):
            return fault
    if observation.predicted_context_bytes < 0 or observation.predicted_nccl_bytes < 0:
        return "predicted bytes outside the allocator are negative"
    return ""


def outliers(residuals: Sequence[float], furthest: float) -> frozenset[int]:
    """The places of the residuals that lie further than `furthest` from the median of all, if they are few."""
    if len(residuals) < FEWEST_FOR_OUTLIERS:
        return frozenset()
    median = statistics.median(residuals)
    far = frozenset(place for place, residual in enumerate(residuals) if abs(residual - median) > furthest)
    return far if len(far) <= MOST_OUTLIERS * len(residuals) else frozenset()


def ratio_fault(name: str, predicted: int, measured: int, most: int) -> str:
    """Why two figures cannot belong together: one is not positive, or they are too far apart."""
    if predicted <= 0:
        return f"predicted {name} bytes are {predicted}"
    if measured <= 0:
        return f"measured {name} bytes are {measured}"
    if max(predicted, measured) > most * min(predicted, measured):
        return (
            f"measured {name} bytes, {show_bytes(measured)}, are more than {most} times away from those predicted, "
            f"{show_bytes(predicted)}"
        )
    return ""
