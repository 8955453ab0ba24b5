"""Plans come back as they were stored, whoever stores them and however often."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.events import Category
from planner.report.statement import Plan, Verdict, to_json
from planner.service.history.errors import HistoryError
from planner.service.history.plan_table import PlanSummary, RankClassSummary
from planner.service.history.store import History
from planner.units import GIB


def test_a_plan_comes_back_equal_and_its_json_to_the_letter(history: History, plan: Callable[..., Plan]) -> None:
    stored = plan()

    history.plans.put(stored)

    again = history.plans.get(stored.plan_id)
    assert again is not None
    assert to_json(again) == to_json(stored)
    text = history.plans.text(stored.plan_id)
    assert text == json.dumps(to_json(stored), separators=(",", ":"))
    assert list(json.loads(text)) == list(to_json(stored))


def test_what_was_never_stored_is_not_there(history: History) -> None:
    assert history.plans.get("pl-nothing") is None
    assert history.plans.text("pl-\0\ud800") is None
    assert history.plans.rank_classes("pl-nothing") == ()
    assert history.plans.newest() == ()


def test_storing_again_is_the_same_as_once(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())
    history.plans.put(plan())

    assert [each.plan_id for each in history.plans.newest()] == [plan().plan_id]
    assert len(history.plans.rank_classes(plan().plan_id)) == 2


def test_a_summary_sums_over_all_ranks_and_has_the_fullest_of_them(
    history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan(team="", name="run\nwith\0odd\ud800 name"))

    assert history.plans.newest() == (
        PlanSummary(
            plan_id=plan().plan_id, trace_id=plan().trace_id, stored_at=clock.now, verdict=Verdict.FITS,
            calibrated=False, name="run with odd  name", team="", queue="h100", gpu="H100-SXM-80GB", ranks=8,
            requested_bytes=8 * 80 * GIB, predicted_bytes=(40 + 7 * 30) * GIB,
            fullest_bytes=40 * GIB, capacity_bytes=80 * GIB,
        ),
    )  # fmt: skip


def test_rank_classes_can_be_asked_for_without_the_plan(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan())

    _, second = history.plans.rank_classes(plan().plan_id)

    peak = plan().rank_classes[1].peak
    assert second == RankClassSummary(
        representative=1, ranks="1-7", count=7, verdict=Verdict.FITS, capacity_bytes=80 * GIB,
        allocated_bytes=peak.allocated_bytes, reserved_bytes=peak.reserved_bytes, device_bytes=30 * GIB,
        interval_bytes=(29 * GIB, 31 * GIB),
        at_peak={each: plan().rank_classes[1].at_peak.get(each, 0) for each in Category},
    )  # fmt: skip


def test_the_metadata_are_those_of_the_last_who_asked(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(team="nlp"))
    history.plans.put(plan(team="vision"))

    document = history.plans.document(plan().plan_id)
    assert document is not None
    assert document["job"]["metadata"]["team"] == "vision"
    assert [each.team for each in history.plans.newest()] == ["vision"]


def test_a_plan_without_advice_does_not_take_the_place_of_one_with_it(
    history: History, plan: Callable[..., Plan], advised: Callable[[Plan], Plan]
) -> None:
    history.plans.put(plan())
    history.plans.put(advised(plan()))
    history.plans.put(plan())

    document = history.plans.document(plan().plan_id)
    assert document == to_json(advised(plan()))


def test_lists_are_newest_first_and_go_on(history: History, plan: Callable[..., Plan], clock: Any) -> None:
    for number in range(5):
        history.plans.put(plan(number))
        clock.passes(seconds=1)

    first = history.plans.newest(2)
    second = history.plans.newest(2, before=first[-1].stored_at)

    assert [each.plan_id for each in (*first, *second)] == [plan(number).plan_id for number in (4, 3, 2, 1)]


def test_lists_can_be_narrowed(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(plan(1, team="nlp", queue="h100"))
    history.plans.put(plan(2, team="vision", queue="a100", verdict=Verdict.EXCEEDS))

    def found(**wanted: Any) -> list[str]:
        return [each.plan_id for each in history.plans.newest(**wanted)]

    assert found(team="nlp") == found(queue="h100") == found(verdict=Verdict.FITS) == [plan(1).plan_id]
    assert found(team="vision") == [plan(2).plan_id]
    assert found(team="nlp", queue="a100") == []


def test_a_plan_that_claims_more_bytes_than_there_are_is_refused(history: History, plan: Callable[..., Plan]) -> None:
    with pytest.raises(HistoryError, match=r"requested_bytes of the plan is \d+"):
        history.plans.put(plan(capacity_bytes=2**61))

    assert history.plans.newest() == ()


def test_nothing_of_a_plan_is_stored_if_a_part_cannot_be(history: History, plan: Callable[..., Plan]) -> None:
    first, second = plan().rank_classes
    broken = replace(plan(), rank_classes=(first, replace(second, representative=first.representative)))

    with pytest.raises(HistoryError):
        history.plans.put(broken)

    assert history.plans.newest() == ()
    assert history.plans.text(plan().plan_id) is None
