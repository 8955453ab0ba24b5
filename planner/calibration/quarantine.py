"""Measurements from which nothing is learnt, and why: broken ones by themselves, outliers beside their like."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from planner.calibration.observation import Observation
from planner.units import show_bytes

MOST_RESERVED_RATIO = 3
MOST_OUTSIDE_RATIO = 10
"""Predicted and measured further apart than this are not of the same program. The worst published peak that planner
missed is off by 17.5 % (docs/accuracy.md); NCCL on a PCIe machine takes a tenth of what it does on NVLink."""

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


def fault_of(seen: Observation) -> str:
    """Why a measurement is broken by itself; empty if it is not."""
    if not seen.gpu:
        return "it names no GPU"
    if not seen.group[1]:
        return f"{seen.torch!r} is no version of torch"
    if seen.measured_out_of_memory:
        return "the measured step ran out of memory"
    if seen.predicted_out_of_memory:
        return "the predicted step ran out of memory, so its figures are those of a larger device"
    return _reserved_fault(seen) or _device_fault(seen) or _outside_fault(seen)


def outliers(residuals: Sequence[float], furthest: float) -> frozenset[int]:
    """The places of the residuals that lie further than `furthest` from the median of all, if they are few."""
    if len(residuals) < FEWEST_FOR_OUTLIERS:
        return frozenset()
    median = statistics.median(residuals)
    far = frozenset(place for place, each in enumerate(residuals) if abs(each - median) > furthest)
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


def _reserved_fault(seen: Observation) -> str:
    predicted, measured = seen.predicted_reserved_bytes, seen.measured_reserved_bytes
    return ratio_fault("reserved", predicted, measured, MOST_RESERVED_RATIO)


def _device_fault(seen: Observation) -> str:
    total = seen.device_total_bytes
    if total < 0:
        return f"the device's size is {total}"
    for name, held in (("reserved", seen.measured_reserved_bytes), ("device", seen.measured_device_bytes or 0)):
        if total and held > total:
            return f"measured {name} bytes, {show_bytes(held)}, are more than the device has, {show_bytes(total)}"
    if seen.measured_outside_bytes is not None and seen.measured_outside_bytes <= 0:
        return "measured device bytes are no more than the reserved bytes"
    return ""


def _outside_fault(seen: Observation) -> str:
    for name, predicted, measured in (
        ("context", seen.predicted_context_bytes, seen.measured_context_bytes),
        ("NCCL", seen.predicted_nccl_bytes, seen.measured_nccl_bytes),
    ):
        fault = "" if measured is None else ratio_fault(name, predicted, measured, MOST_OUTSIDE_RATIO)
        if fault:
            return fault
    if seen.predicted_context_bytes < 0 or seen.predicted_nccl_bytes < 0:
        return "predicted bytes outside the allocator are negative"
    return ""
