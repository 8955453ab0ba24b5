"""A calibration, and the interval in which a rank's device bytes lie."""

from __future__ import annotations

from dataclasses import dataclass

from planner.overhead.estimate import Outside
from planner.units import MIB

PRIOR_RESERVED_ERROR = 0.06
"""How far reserved bytes may be off, relative, with 95 % probability, before anything is measured.

Not a measurement of planner: a prior. The smallest published median error of predicted reserved bytes is 2.03 %
(SimuMax on 8 B200, fitted on the same rows); a normal error with that median stays within 2.91 times as much with
95 % probability: 5.9 %, rounded up.
"""


PRIOR_UNKNOWN_WORKSPACE_BYTES = 512 * MIB
"""How much more a process may reserve where its kernels take workspaces that nobody knows the size of.

Not a measurement of planner: a prior. cuDNN's convolutions are the case in point; a workspace lives as long as its
kernel, so the largest of them counts, not their sum.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is known from measurements: how reserved and outside bytes are corrected and how far off they remain.

    `reserved_error` is relative, at 95 %. `outside_correction_bytes` is added to what the overhead table says.
    """

    id: str
    reserved_error: float
    outside_correction_bytes: int = 0

    @classmethod
    def none(cls) -> Calibration:
        """Nothing measured: no correction, a wide interval."""
        return cls(id="none", reserved_error=PRIOR_RESERVED_ERROR)

    @property
    def calibrated(self) -> bool:
        return self.id != "none"


def interval(
    device_bytes: int, outside: Outside, calibration: Calibration, *, unknown_workspaces: bool = False
) -> tuple[int, int]:
    """Where the device bytes lie with 95 % probability: `(lowest, highest)`, both in bytes.

    `device_bytes` are reserved bytes plus `outside.total_bytes`. The uncertainty of the two parts is added up, as if
    both could be at their end together.
    """
    reserved = device_bytes - outside.total_bytes
    margin = round(reserved * calibration.reserved_error)
    correction = calibration.outside_correction_bytes
    more = PRIOR_UNKNOWN_WORKSPACE_BYTES if unknown_workspaces else 0
    lowest = reserved - margin + outside.low_bytes + correction
    return lowest, reserved + margin + more + outside.high_bytes + correction
