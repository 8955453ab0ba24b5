"""What is learnt: medians, shrunk while measurements are few, for the GPU and torch on which they were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from planner.job.overhead import OutsideEstimate
from planner.truth.calibration.interval import Calibration, Correction, Estimate, estimate, interval
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation, make_observation
from planner.units import GIB, MIB

Seen = Callable[..., Observation]
H100 = ("H100-SXM-80GB", "2.13")
TABLE = OutsideEstimate(cuda_context_bytes=800 * MIB, nccl_bytes=0, low_bytes=600 * MIB, high_bytes=1000 * MIB)


def learnt(observations: Sequence[Observation]) -> Correction:
    correction = learn(observations).applied_to(*H100).correction
    assert correction is not None
    return correction


@pytest.mark.parametrize(("count", "weight"), [(1, 1 / 6), (5, 1 / 2), (15, 3 / 4), (95, 0.95)])
def test_n_measurements_weigh_n_to_the_priors_five(seen: Seen, count: int, weight: float) -> None:
    reserved = learnt([seen(0.02) for _ in range(count)]).reserved

    assert reserved.weight == pytest.approx(weight)
    assert reserved.residual == pytest.approx(0.02 * weight)
    assert reserved.median == pytest.approx(0.02)
    assert reserved.measurements == count


def test_the_interval_always_reaches_as_far_as_the_measurements_do(seen: Seen) -> None:
    """Shrinking moves the middle away from the median; the margin makes up for it."""
    for count in (1, 3, 8, 30):
        known = learn([seen(0.10) for _ in range(count)])
        lowest, highest = interval(10 * GIB + 800 * MIB, TABLE, known, gpu=H100[0], torch=H100[1])
        assert lowest < 11 * GIB + TABLE.total_bytes <= highest


def test_many_measurements_give_the_priors_width_up() -> None:
    few, many = estimate([0.01, 0.02, 0.03]), estimate([0.01, 0.02, 0.03] * 40)

    assert few.margin(0.06) > many.margin(0.06)
    assert many.margin(0.06) == pytest.approx(0.01 + 0.04 * (0.06 - 0.01) + 0.04 * 0.02, abs=1e-12)


def test_a_spread_wider_than_the_prior_is_not_narrowed_by_it() -> None:
    assert estimate([-0.2, -0.1, 0.0, 0.1, 0.2]).margin(0.06) > 0.2


def test_patch_versions_and_builds_of_torch_share_what_was_learnt_and_others_do_not(seen: Seen) -> None:
    known = learn([seen(0.02, torch="2.13.0+cu130"), seen(0.02, torch="2.13.1"), seen(0.04, torch="2.12.1")])

    counts = {correction.torch: correction.reserved.measurements for correction in known.corrections}
    assert counts == {"2.13": 2, "2.12": 1}
    assert known.applied_to("H100-SXM-80GB", "2.13.2").calibrated
    assert not known.applied_to("H100-SXM-80GB", "2.1").calibrated
    assert not known.applied_to("A100-SXM-80GB", "2.13").calibrated


def test_where_nothing_was_measured_the_prior_holds(seen: Seen) -> None:
    known = learn([seen(0.02) for _ in range(10)])

    elsewhere = interval(10 * GIB, TABLE, known, gpu="A100-SXM-80GB", torch="2.13")
    assert elsewhere == interval(10 * GIB, TABLE, Calibration.none())
    assert elsewhere == interval(10 * GIB, TABLE, known)
    assert elsewhere != interval(10 * GIB, TABLE, known, gpu=H100[0], torch=H100[1])


def test_the_context_is_corrected_and_the_tables_margin_given_up(seen: Seen) -> None:
    known = learn([seen(measured_context_bytes=880 * MIB) for _ in range(15)])

    held = known.applied_to(*H100).correct_outside(TABLE)

    middle = 860 * MIB  # three quarters of the way from 800 to 880
    reach = 20 * MIB + 45 * MIB  # what is left to the median, and a quarter of the table's margin above that
    assert held == OutsideEstimate(
        cuda_context_bytes=middle, nccl_bytes=0, low_bytes=middle - reach, high_bytes=middle + reach, calibrated=True
    )


def test_a_process_with_nccl_keeps_the_tables_margin_until_nccl_was_measured(seen: Seen) -> None:
    known = learn([seen(measured_context_bytes=800 * MIB) for _ in range(45)])
    both = OutsideEstimate(
        cuda_context_bytes=800 * MIB, nccl_bytes=900 * MIB, low_bytes=1000 * MIB, high_bytes=2200 * MIB
    )

    held = known.applied_to(*H100).correct_outside(both)

    assert (held.low_bytes, held.high_bytes) == (both.low_bytes, both.high_bytes)


def test_nccl_is_what_is_left_when_the_corrected_context_is_taken_off(seen: Seen) -> None:
    alone = [seen(measured_context_bytes=880 * MIB) for _ in range(15)]
    ranks = [
        seen(
            world_size=8, predicted_nccl_bytes=1000 * MIB, measured_device_bytes=10 * GIB + 860 * MIB + 900 * MIB
        )
        for _ in range(5)
    ]  # fmt: skip

    found = learnt(alone + ranks)

    assert found.nccl is not None
    assert found.nccl.median == pytest.approx(-0.10)
    assert found.nccl == Estimate(residual=found.nccl.median / 2, median=found.nccl.median, spread=0.0, measurements=5)


def test_what_was_measured_once_counts_once(seen: Seen) -> None:
    once = seen(0.02)

    assert learn([once, once]) == learn([once])


def test_what_applies_is_said_with_the_number_of_measurements(seen: Seen) -> None:
    known = learn(
        [seen(0.02, measured_context_bytes=880 * MIB) for _ in range(15)] + [seen(measured_out_of_memory=True)]
    )

    applied = known.applied_to(*H100)

    assert applied.sentences == (
        f"Calibration {known.id}, H100-SXM-80GB with torch 2.13: the interval of reserved bytes is that of "
        "recorded runs, corrected by +1.5%, from 15 measurements.",
        "CUDA context corrected by +7.5%, from 15 measurements; NCCL not measured there and not corrected.",
        "1 measurement on H100-SXM-80GB with torch 2.13 is quarantined and taught nothing.",
    )


def test_device_bytes_of_a_lone_process_are_its_context_and_those_of_many_wait_for_learning() -> None:
    figures = {
        "gpu": "H100-SXM-80GB", "torch": "2.13.0", "reserved_bytes": (1000, 1010), "device_bytes": 1900,
        "predicted_context_bytes": 800, "predicted_nccl_bytes": 300,
    }  # fmt: skip
    usual = Observation(
        gpu="H100-SXM-80GB", torch="2.13.0", predicted_reserved_bytes=1000, measured_reserved_bytes=1010,
        predicted_context_bytes=800, measured_context_bytes=890, measured_device_bytes=1900,
    )  # fmt: skip
    alone = make_observation(**figures)
    together = make_observation(**figures, peers="present")
    of_the_device = make_observation(**figures, device_bytes_by="device")

    assert alone == usual
    assert make_observation(**figures, peers="absent") == usual
    assert (together.measured_context_bytes, together.predicted_nccl_bytes) == (None, 300)
    assert (of_the_device.measured_context_bytes, of_the_device.measured_device_bytes) == (None, None)
