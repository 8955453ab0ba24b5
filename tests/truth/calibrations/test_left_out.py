"""Whether intervals hold for steps from which nothing was learnt: each is left out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.job.kinds import ANY
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import Coverage, cover_left_out
from planner.truth.calibration.observation import Observation

Seen = Callable[..., Observation]


def test_a_step_is_judged_by_the_others_alone(seen: Seen) -> None:
    near = [replace(seen(0.001 * number), case=f"near-{number}") for number in range(40)]
    far = replace(seen(0.2), case="far")

    found = cover_left_out([*near, far])
    assert (found.observations, found.outside) == (41, ("far",))
    assert found.covered == 40


def test_one_alone_is_judged_by_the_prior(seen: Seen) -> None:
    """That of recorded runs of specs on one GPU."""
    low, high = Calibration.none().prior_band(ANY)

    assert cover_left_out([seen(high / 2)]) == Coverage(observations=1, covered=1, outside=())
    assert cover_left_out([replace(seen(high + 0.01), case="far")]).outside == ("far",)
    assert cover_left_out([replace(seen(low - 0.01), case="far")]).outside == ("far",)


def test_broken_observations_are_not_asked(seen: Seen) -> None:
    assert cover_left_out([seen(0.0, measured_out_of_memory=True)]) == Coverage(observations=0, covered=0, outside=())
