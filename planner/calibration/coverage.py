"""Whether intervals hold for steps from which nothing was learnt: each observation is left out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.calibration.interval import reserved_band
from planner.calibration.learning import learn
from planner.calibration.observation import Observation
from planner.calibration.quarantine import fault_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Of so many observations, how many lie in the interval that the others teach; names of those that do not."""

    observations: int
    covered: int
    outside: tuple[str, ...]


def cover_left_out(observations: Sequence[Observation]) -> Coverage:
    """Measured reserved bytes beside the interval around the predicted ones; broken observations are not asked."""
    sound = [each for each in observations if not fault_of(each)]
    outside = [each.case for each in sound if not _is_covered(each, [other for other in sound if other is not each])]
    return Coverage(observations=len(sound), covered=len(sound) - len(outside), outside=tuple(outside))


def _is_covered(left_out: Observation, others: Sequence[Observation]) -> bool:
    known = learn(others).applied_to(*left_out.group)
    low, high = reserved_band(known.reserved_residual, known.reserved_error)
    far = left_out.measured_reserved_bytes / left_out.predicted_reserved_bytes - 1
    return low <= far <= high
