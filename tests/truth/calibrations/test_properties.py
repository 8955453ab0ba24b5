"""What holds for any measurements."""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from planner.job.overhead import OutsideEstimate
from planner.truth.calibration.interval import (
    AppliedCorrection,
    Calibration,
    estimate,
    from_json,
    interval,
    to_json,
    weight_of,
)
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation
from planner.units import GIB, MIB

Seen = Callable[..., Observation]
H100 = ("H100-SXM-80GB", "2.13")
TABLE = OutsideEstimate(cuda_context_bytes=800, nccl_bytes=900, low_bytes=1000, high_bytes=2200)

BYTES = st.one_of(st.integers(-2, 90 * GIB), st.sampled_from([0, GIB, 10 * GIB, 2**63 - 1]))
MAYBE = st.one_of(st.none(), BYTES)
ANY = st.builds(
    Observation,
    gpu=st.sampled_from(["H100-SXM-80GB", "L4-24GB", ""]),
    torch=st.sampled_from(["2.13.0", "2.13.1+cu130", "2.12", "x"]),
    case=st.text(max_size=2),
    predicted_reserved_bytes=BYTES,
    measured_reserved_bytes=BYTES,
    predicted_context_bytes=BYTES,
    measured_context_bytes=MAYBE,
    predicted_nccl_bytes=BYTES,
    measured_nccl_bytes=MAYBE,
    measured_device_bytes=MAYBE,
    device_total_bytes=st.sampled_from([0, 80 * GIB]),
    measured_out_of_memory=st.booleans(),
)
OFF = st.floats(-0.2, 0.2)
RANKS = st.builds(
    lambda reserved, outside, case: Observation(
        gpu="H100-SXM-80GB",
        torch="2.13.1",
        world_size=8,
        case=f"ranks {case}",
        predicted_reserved_bytes=10 * GIB,
        measured_reserved_bytes=round(10 * GIB * (1 + reserved)),
        predicted_context_bytes=800 * MIB,
        predicted_nccl_bytes=900 * MIB,
        measured_device_bytes=round(10 * GIB * (1 + reserved)) + outside * MIB,
    ),
    st.floats(-0.4, 0.4),
    st.integers(600, 4000),
    st.integers(),
)
"""Of a process with peers only the sum is known that context and NCCL take."""
GOOD = st.builds(
    lambda reserved, context, nccl, case: Observation(
        gpu="H100-SXM-80GB",
        torch="2.13.0",
        case=f"good {case}",
        predicted_reserved_bytes=10 * GIB,
        measured_reserved_bytes=round(10 * GIB * (1 + reserved)),
        predicted_context_bytes=800 * MIB,
        measured_context_bytes=round(800 * MIB * (1 + context)),
        predicted_nccl_bytes=900 * MIB,
        measured_nccl_bytes=round(900 * MIB * (1 + nccl)),
    ),
    st.floats(-0.05, 0.05),
    OFF,
    OFF,
    st.integers(),
)

MIXED = st.lists(st.one_of(ANY, GOOD, RANKS), max_size=20)


def figures(known: Calibration) -> list[float]:
    found = known.applied_to(*H100).correction
    assert found is not None
    assert found.context is not None
    assert found.nccl is not None
    return [found.reserved.residual, found.context.residual, found.nccl.residual]


@given(good=st.lists(GOOD, min_size=10, max_size=10, unique=True), wild=ANY)
def test_one_wild_measurement_among_ten_moves_no_correction_further_than_the_good_ones_differ(
    good: list[Observation], wild: Observation
) -> None:
    """The bound: half of what the good residuals span, and the 2.1 % that the eleventh weighs, of the largest."""
    wild = dataclasses.replace(wild, gpu="H100-SXM-80GB", torch="2.13.0")
    before, after = learn(good), learn([*good, wild])

    pairs = [
        (each.predicted_reserved_bytes, each.measured_reserved_bytes,
         each.predicted_context_bytes, each.measured_context_bytes or 0,
         each.predicted_nccl_bytes, each.measured_nccl_bytes or 0)
        for each in good
    ]  # fmt: skip
    for place, (old, new) in enumerate(zip(figures(before), figures(after), strict=True)):
        off = [pair[2 * place + 1] / pair[2 * place] - 1 for pair in pairs]
        bound = (max(off) - min(off)) / 2 + 0.021 * max(map(abs, off))
        assert abs(new - old) <= bound + 1e-9


@given(seen=MIXED, order=st.randoms(use_true_random=False))
def test_the_order_of_measurements_does_not_matter(seen: list[Observation], order: random.Random) -> None:
    shuffled = list(seen)
    order.shuffle(shuffled)

    assert learn(shuffled) == learn(seen)


@given(seen=MIXED)
def test_every_measurement_teaches_or_is_shown(seen: list[Observation]) -> None:
    found = learn(seen)

    applied = {(each.gpu, each.torch): each.reserved.measurements for each in found.corrections}
    groups = {each.group for each in seen}
    for group in groups:
        set_aside = sum(each.observation.group == group for each in found.quarantined)
        assert applied.get(group, 0) + set_aside == len({each for each in seen if each.group == group})


@given(off=st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=45), more=st.integers(1, 30), prior=st.floats(0, 0.3))
@example(off=[0.1], more=1, prior=0.06)
@example(off=[0.0] * 17 + [0.2], more=1, prior=0.06)
def test_more_measurements_that_agree_never_widen_the_interval(off: list[float], more: int, prior: float) -> None:
    """They agree if they lie at the median of those there are."""
    before, after = estimate(off), estimate([*off, *[statistics.median(off)] * more])

    assert after.margin(prior) <= before.margin(prior) + 1e-12
    assert after.spread <= before.spread


@given(off=st.lists(st.floats(-0.12, 0.12), min_size=1, max_size=25), more=st.integers(1, 20))
def test_nor_do_they_after_learning(seen: Seen, off: list[float], more: int) -> None:
    def error(residuals: list[float]) -> float:
        low, high = learn([seen(each) for each in residuals]).applied_to(*H100).reserved_band((-0.06, 0.06))
        return high - low

    assert error([*off, *[statistics.median(off)] * more]) <= error(off) + 1e-9


def test_nothing_measured_leaves_the_prior() -> None:
    assert learn([]) == Calibration.none()


@given(seen=MIXED)
def test_a_calibration_comes_back_from_json_as_it_was(seen: list[Observation]) -> None:
    known = learn(seen)

    assert from_json(json.loads(json.dumps(to_json(known)))) == known


@given(seen=MIXED)
def test_whatever_was_measured_the_interval_is_one_and_holds_the_corrected_bytes(seen: list[Observation]) -> None:
    known = learn(seen)
    applied: AppliedCorrection = known.applied_to(*H100)
    held = applied.correct_outside(TABLE)

    lowest, highest = interval(10**9 + held.total_bytes, held, known, gpu=H100[0], torch=H100[1])

    middle = 10**9 + round(10**9 * applied.reserved_residual) + held.total_bytes
    assert 0 <= lowest <= middle <= highest
    assert applied.calibrated == (applied.correction is not None)


def test_the_weights_are_those_of_the_bound() -> None:
    assert weight_of(11) - weight_of(10) < 0.021
