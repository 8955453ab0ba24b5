"""Jobs judged by the share of their kind that may take more: `--risk`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.errors import PlannerError, SettingError
from planner.events import Alloc, Mark, Phase
from planner.job.kinds import Kind
from planner.job.layout import RankClass
from planner.job.rank_sets import RankSet
from planner.job.schema import Cluster, Gpu, Job, Model
from planner.planning.judging import RankTrace
from planner.planning.plan import plan_from_traces
from planner.report.statement import Plan
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.recorded_errors import judge_at_risk, parse_risk, reserved_band, reserved_bound
from planner.units import GIB
from planner.verdict import Verdict

COMPILED = Kind(compiled=True, program=True, several_ranks=True)


@pytest.fixture
def plan() -> Plan:
    """Of 10 GiB on a GPU of 80, of a compiled program."""
    job = Job(model=Model(), cluster=Cluster(gpu=Gpu(name="H100-SXM-80GB", total_bytes=80 * GIB, arch="sm_90")))
    trace = Trace((Mark(Phase.LOAD, 0), Alloc(0, 10 * GIB, 0)))
    made = plan_from_traces(job, [RankTrace(RankClass(0, RankSet.world(1), {}), trace)], None).plan
    return replace(made, rank_classes=(replace(made.rank_classes[0], kind=COMPILED),))


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.01", 0.01), (" 50% ", 0.5)])
def test_a_risk_is_a_share_of_jobs(text: str, share: float) -> None:
    assert parse_risk(text, "--risk") == share


@pytest.mark.parametrize("text", ["", "0", "60%", "a few", "nan", "1e999", "-1%"])
def test_what_is_no_share_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(PlannerError) as refused:
        parse_risk(text, "--risk")

    assert (refused.value.place, refused.value.allowed) == (
        "--risk",
        "a share of jobs from 0.1% to 50%, as 1% or 0.01",
    )
    with pytest.raises(SettingError):
        parse_risk(text, "admission.risk", SettingError)


def test_less_risk_moves_the_upper_end_by_what_recorded_runs_of_the_kind_say(plan: Plan) -> None:
    before, after = plan.rank_classes[0].peak, judge_at_risk(plan, 0.01).rank_classes[0].peak

    more = round(before.reserved_bytes * (reserved_bound(COMPILED, 0.01) - reserved_band(COMPILED)[1]))
    assert after.interval_bytes == (before.interval_bytes[0], before.interval_bytes[1] + more)
    assert replace(after, interval_bytes=before.interval_bytes) == before


def test_a_job_that_fits_may_be_tight_with_less_risk_and_fit_again_with_more(plan: Plan) -> None:
    (known,) = plan.rank_classes
    room = replace(plan, rank_classes=(replace(known, capacity_bytes=known.peak.interval_bytes[1] + 1),))

    assert judge_at_risk(room, 0.001).verdict == Verdict.TIGHT
    assert judge_at_risk(room, 0.5).verdict == Verdict.FITS
    assert judge_at_risk(judge_at_risk(room, 0.5), 0.5).rank_classes[0].risk == 0.5


def test_what_does_not_hang_on_the_interval_is_as_it_was(plan: Plan) -> None:
    (known,) = plan.rank_classes
    exceeds = replace(known, verdict=Verdict.EXCEEDS)
    released = replace(known, verdict=Verdict.TIGHT, cache_releases=1)
    unseen = replace(known, verdict=Verdict.TIGHT, judged_iterations=4)
    room = [replace(each, capacity_bytes=200 * GIB) for each in (exceeds, released, unseen)]

    judged = judge_at_risk(replace(plan, rank_classes=tuple(room)), 0.5)

    assert [each.verdict for each in judged.rank_classes] == ["exceeds", "tight", "tight"]
