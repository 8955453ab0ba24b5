"""An interval of 95 % covers 95 % of what was not measured yet, for residuals of which we know the distribution."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.job.kinds import ANY
from planner.job.overhead import OutsideEstimate
from planner.truth.calibration.interval import Calibration, interval
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation

PREDICTED = 10**10
NOTHING = OutsideEstimate(cuda_context_bytes=0, nccl_bytes=0, low_bytes=0, high_bytes=0)
H100 = ("H100-SXM-80GB", "2.13")
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda chance: chance.gauss(0, 1),
    "Laplace": lambda chance: chance.expovariate(1) * chance.choice((-1, 1)),
    "skewed": lambda chance: chance.expovariate(1),
}


PRIOR = Calibration(id="by hand", reserved_error=0.06)


def covered(distribution: str, *, scale: float, shift: float, count: int, rounds: int, fresh: int = 40) -> float:
    """The share of fresh residuals that lie in intervals learnt from `count` others."""
    chance = random.Random(f"{distribution} {scale} {shift} {count}")

    def measured() -> int:
        return round(PREDICTED * (1 + shift + scale * DISTRIBUTIONS[distribution](chance)))

    inside = 0
    for _ in range(rounds):
        known = replace(PRIOR, corrections=learn(
            Observation(
                gpu=H100[0], torch="2.13.0", case=str(case), predicted_reserved_bytes=PREDICTED,
                measured_reserved_bytes=measured(),
            )
            for case in range(count)
        ).corrections)  # fmt: skip
        lowest, highest = interval(PREDICTED, NOTHING, known, gpu=H100[0], torch=H100[1])
        inside += sum(lowest <= measured() <= highest for _ in range(fresh))
    return inside / (rounds * fresh)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_many_measurements_cover_95_percent_within_two_points(distribution: str) -> None:
    share = covered(distribution, scale=0.03, shift=0.04, count=200, rounds=60)

    assert share == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("distribution", ["normal", "Laplace"])
@pytest.mark.parametrize("scale", [0.01, 0.05])
@pytest.mark.parametrize("count", [3, 8, 18, 30])
def test_few_measurements_cover_at_least_that_less_two_points(distribution: str, scale: float, count: int) -> None:
    assert covered(distribution, scale=scale, shift=0.02, count=count, rounds=150) >= 0.93


def test_without_the_correction_for_few_measurements_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.truth.calibration.interval.small_sample_factor", lambda _: 1.0)

    assert covered("normal", scale=0.05, shift=0.02, count=8, rounds=150) < 0.93


def test_a_prior_that_is_too_narrow_is_widened_and_one_that_is_too_wide_is_narrowed() -> None:
    narrow, wide = (
        Calibration(id="by hand", reserved_error=error) for error in (0.001, 0.5)
    )  # fmt: skip
    chance = random.Random(0)
    observations = [
        Observation(
            gpu=H100[0], torch="2.13.0", case=str(case), predicted_reserved_bytes=PREDICTED,
            measured_reserved_bytes=round(PREDICTED * (1 + chance.gauss(0, 0.02))),
        )
        for case in range(200)
    ]  # fmt: skip

    applied = learn(observations).applied_to(*H100)
    bands = [applied.reserved_band(prior.prior_band(ANY)) for prior in (narrow, wide)]
    errors = [(high - low) / 2 for low, high in bands]

    assert errors == [pytest.approx(0.04, abs=0.01), pytest.approx(0.05, abs=0.01)]
