"""What a calibration does to a plan, from a trace that is already there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from planner.events import Alloc, Mark, Phase
from planner.job.layout import Mesh, rank_classes
from planner.job.overhead import outside_of
from planner.job.schema import Cluster, Decoder, Gpu, Job, Model, Software
from planner.planning import identity, judging
from planner.planning.judging import RankTrace
from planner.planning.plan import PlanningResult, plan_from_traces
from planner.report.plan_text import render
from planner.report.statement import Peak, Verdict, from_json, to_json
from planner.report.style import Style
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration
from planner.truth.calibration.learning import learn
from planner.truth.calibration.observation import Observation
from planner.units import GIB, MIB

Seen = Callable[..., Observation]
EVENTS = (Mark(Phase.FORWARD, 1), Alloc(0, 10 * GIB))


def planned(
    calibration: Calibration | None, *, gpu: str = "H100-SXM-80GB", torch: str = "2.13", total: int = 80 * GIB
) -> PlanningResult:
    job = Job(
        model=Model(decoder=Decoder(layers=1, hidden=8, heads=1, kv_heads=1, ffn=8, vocab=8)),
        cluster=Cluster(gpu=Gpu(name=gpu, total_bytes=total, arch="sm_90")),
        software=Software(torch=torch),
    )
    (only,) = rank_classes(Mesh.of(job.parallel))
    return plan_from_traces(job, [RankTrace(only, Trace(EVENTS))], calibration)


def peak_of(found: PlanningResult) -> Peak:
    return found.plan.rank_classes[0].peak


@pytest.fixture
def known(seen: Seen) -> Calibration:
    return learn(seen(0.02, predicted_context_bytes=778 * MIB, measured_context_bytes=878 * MIB) for _ in range(15))


def test_a_plan_for_a_measured_gpu_and_torch_is_calibrated_and_its_context_corrected(known: Calibration) -> None:
    before, after = planned(None), planned(known)

    assert (before.plan.calibrated, after.plan.calibrated) == (False, True)
    assert peak_of(after).reserved_bytes == peak_of(before).reserved_bytes == 10 * GIB
    assert peak_of(after).device_bytes - peak_of(before).device_bytes == 75 * MIB
    assert after.plan.plan_id != before.plan.plan_id
    low, high = peak_of(after).interval_bytes
    assert low <= 10.2 * GIB + 878 * MIB <= high
    assert high - low < peak_of(before).interval_bytes[1] - peak_of(before).interval_bytes[0]


def test_the_report_says_what_was_corrected_and_from_how_many_measurements(known: Calibration) -> None:
    def said(found: PlanningResult) -> str:
        return " ".join(render(found.plan, Style()).split())

    assert "from 15 measurements. CUDA context corrected by +9.6%, from 15 measurements" in said(planned(known))
    assert f"calibration {known.id}" in said(planned(known))
    assert "uncalibrated" not in said(planned(known)).lower()
    assert "Uncalibrated: nothing was measured" in said(planned(known, torch="2.12"))


def test_measurements_decide_a_verdict_that_the_table_could_not(seen: Seen) -> None:
    def fits(observations: Iterable[Observation]) -> Verdict:
        return planned(learn(observations), total=10 * GIB + 1100 * MIB).plan.verdict

    assert fits([]) is Verdict.TIGHT
    assert fits(seen(0.0, predicted_context_bytes=778 * MIB, measured_context_bytes=778 * MIB) for _ in range(60)) is (
        Verdict.FITS
    )


def test_what_lives_outside_stays_what_the_table_says_so_that_it_can_be_learnt_again(known: Calibration) -> None:
    """Observations are of uncalibrated plans: `outside_of` is where their figures come from."""
    job = Job(
        model=Model(), cluster=Cluster(gpu=Gpu(name="H100-SXM-80GB", arch="sm_90")), software=Software(torch="2.13")
    )

    assert outside_of(job).cuda_context_bytes == 778 * MIB
    assert peak_of(planned(known)).device_bytes == 10 * GIB + (778 + 75) * MIB


def test_a_plan_by_another_torch_says_so_and_is_as_much_wider_as_the_two_were_seen_to_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, differing = identity.installed_torch(), 0.0
    monkeypatch.setattr(judging, "largest_difference", lambda *_: differing)
    alike = planned(None, torch="2.1")
    differing = 0.25
    other = planned(None, torch="2.1")

    (low, high), (lower, higher) = (peak_of(each).interval_bytes for each in (alike, other))
    assert (low - lower, higher - high) == pytest.approx((2.5 * GIB, 2.5 * GIB), rel=0.02)
    said = other.plan.another_torch
    assert said is not None
    assert (said.asked, said.planned_with, said.difference) == ("2.1", own, 0.25)
    assert "25.0% wider to either side" in said.sentence
    assert any(note.startswith(said.sentence) and "`planner torch 2.1`" in note for note in other.plan.notes)
    assert from_json(to_json(other.plan)) == other.plan


def test_a_plan_by_the_jobs_own_torch_is_no_wider_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "largest_difference", lambda one, other, _: float(one != other))
    own = planned(None, torch=f"{identity.installed_torch()}.1+cu130")

    low, _ = peak_of(own).interval_bytes
    assert low > 9 * GIB
    assert own.plan.another_torch is None
    assert "another_torch" not in to_json(own.plan)
