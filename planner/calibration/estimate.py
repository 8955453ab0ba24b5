"""One correction with its margin, from relative residuals: a median, shrunk, and a quantile around it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PRIOR_WEIGHT = 5
"""How many measurements the prior is worth: n measurements weigh n / (n + 5). A choice, not a measurement."""

COVERED = 0.95
SMALL_SAMPLE = 19
"""From this many residuals on, the largest bounds the next one with 95 % probability: n / (n + 1) >= 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How far measured lies from predicted, relative to predicted: 0.01 is one percent more than predicted.

    `residual` is the correction: the median, shrunk towards the prior. `spread` is how far from the median 95 % of the
    residuals stay, from the residuals alone.
    """

    residual: float
    median: float
    spread: float
    measurements: int

    @property
    def weight(self) -> float:
        """What the measurements weigh against the prior, from 0 to 1."""
        return weight_of(self.measurements)

    def margin(self, prior_margin: float) -> float:
        """Half the width of the 95 % interval around `residual`.

        It reaches as far as the spread around the median does. What the prior's margin has on top is given up with
        the weight; where residuals spread wider than the prior, the prior does not narrow them.
        """
        doubt = 1 - self.weight
        return self.spread + abs(self.median - self.residual) + doubt * max(prior_margin - self.spread, 0.0)


def estimate(residuals: Sequence[float], prior: float = 0.0) -> Estimate:
    """The correction that residuals teach, in any order; there must be one at least. `prior` is where it starts."""
    median = statistics.median(residuals)
    weight = weight_of(len(residuals))
    return Estimate(
        residual=prior + weight * (median - prior),
        median=median,
        spread=_spread([abs(each - median) for each in residuals]),
        measurements=len(residuals),
    )


def weight_of(measurements: int) -> float:
    """n / (n + PRIOR_WEIGHT)."""
    return measurements / (measurements + PRIOR_WEIGHT)


def _spread(deviations: Sequence[float]) -> float:
    """The order statistic that bounds a fresh residual with 95 % probability; of few, the largest and more."""
    count = len(deviations)
    rank = math.ceil(COVERED * (count + 1))
    if rank <= count:
        return sorted(deviations)[rank - 1]
    return max(deviations) * small_sample_factor(count)


def small_sample_factor(count: int) -> float:
    """By how much the largest of few deviations is stretched: 1 from SMALL_SAMPLE on, more the fewer there are.

    The exponent is a choice: with it three residuals or more cover 95 % of fresh ones that are normal or Laplace, wider
    than the prior or not (tests/calibrations/test_coverage.py).
    """
    return math.pow(max(1.0, (SMALL_SAMPLE + 1) / (count + 1)), 0.75)
