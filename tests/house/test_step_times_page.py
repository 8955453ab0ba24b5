"""docs/results/step-times.md: what is kept of published steps, and how far the model of a step's time is from them."""

from __future__ import annotations

import statistics

import pytest
import step_time_shares
import step_times
from step_times import Step

from planner.hardware.kernel_speeds import TRAINING_SHARES


def test_the_page_is_that_of_what_is_kept() -> None:
    page = step_times.PAGE.read_text(encoding="utf-8")
    assert page == step_times.write_page(step_times.read_all()), "write it anew: python benchmarks/step_times.py --page"


def test_of_sixty_drawn_steps_half_are_within_a_tenth() -> None:
    drawn = step_times.draw(step_times.read_all())
    assert len(drawn) == step_times.DRAWN
    assert statistics.median(abs(step.error) for step in drawn) < 0.1


def test_no_drawn_step_is_one_that_a_share_was_fitted_on() -> None:
    steps = step_times.read_all()
    fitted = step_times.fitted_on(steps)

    assert [step.row.split()[0] for step in fitted] == ["13b", "13b", "30b", "7b", "13b", "30b", "70b"]
    assert not {step.row for step in fitted} & {step.row for step in step_times.draw(steps)}


@pytest.mark.parametrize(("arch", "fitted", "others_within"), [("sm_80", "0.91", 0.09), ("sm_90", "0.78", 0.07)])
def test_a_share_fitted_on_half_of_the_rows_is_the_one_in_use_and_says_the_other_half(
    arch: str, fitted: str, others_within: float
) -> None:
    priced = step_time_shares.read_priced()[arch]
    rows = sorted(priced)

    assert step_time_shares.fit_share(rows[::2], priced) == fitted
    assert abs(float(fitted) - TRAINING_SHARES[arch]) < 0.011
    assert max(map(abs, step_time_shares.errors_at(fitted, rows[1::2], priced))) < others_within


def test_nine_of_ten_pairs_that_differ_are_ordered_right() -> None:
    right, count = step_times.ordered_pairs(step_times.read_all())
    assert count > 100
    assert right / count > 0.9


def test_a_step_that_is_a_tenth_too_fast_has_an_error_of_minus_a_tenth() -> None:
    assert round(Step("megatron", "1", "H100", 8, published_ms=200.0, planned_ms=180.0).error, 6) == -0.1
