"""Checks, validations and calibrations: what was answered, measured and learnt is not overwritten by who comes late."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stored import all_checks

from planner.report.statement import Verdict
from planner.service.history.records import Check, StoredCalibration, Validation, ValidationState
from planner.service.history.store import History

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
CHECK = Check(check_id="c-1", plan_id="pl-1", asked_at=NOW, system="slurm", name="sft", team="nlp", queue="h100")
VALIDATION = Validation(
    validation_id="v-1", plan_id="pl-1", state=ValidationState.RUNNING, asked_at=NOW, mode="gpu", gpu="H100-SXM-80GB",
    torch="2.13.0",
)  # fmt: skip
RESULT = {"rank_classes": [{"representative": 0, "error_percent": 0.4, "measured": {"device_bytes": 3}}]}
DONE = replace(
    VALIDATION, state=ValidationState.DONE, finished_at=NOW + timedelta(minutes=2), out_of_memory=False,
    error_percent=0.4, result=RESULT,
)  # fmt: skip


def test_a_pending_check_gets_its_verdict_and_keeps_it(history: History) -> None:
    history.checks.put(CHECK)
    assert all_checks(history) == (CHECK,)

    answered = replace(CHECK, verdict=Verdict.TIGHT)
    history.checks.put(answered)
    history.checks.put(CHECK)

    assert all_checks(history) == (answered,)


def test_checks_are_listed_newest_first_and_counted_by_verdict(history: History) -> None:
    for number, verdict in enumerate((Verdict.FITS, Verdict.FITS, Verdict.EXCEEDS, None)):
        asked_at = NOW + timedelta(seconds=number)
        history.checks.put(
            replace(CHECK, check_id=f"c-{number}", plan_id=f"pl-{number % 2}", asked_at=asked_at, verdict=verdict)
        )

    assert [each.check_id for each in all_checks(history)[:2]] == ["c-3", "c-2"]
    assert history.checks.counts() == {Verdict.FITS: 2, Verdict.EXCEEDS: 1, None: 1}


def test_a_validation_goes_its_way_and_stays_as_it_ended(history: History) -> None:
    history.validations.put(VALIDATION)
    assert history.validations.get("v-1") == VALIDATION

    history.validations.put(DONE)
    history.validations.put(VALIDATION)
    history.validations.put(replace(DONE, state=ValidationState.FAILED, problem="late"))

    assert history.validations.get("v-1") == DONE
    assert history.validations.get("v-2") is None


def test_a_failure_says_why_whatever_its_text(history: History) -> None:
    failed = replace(VALIDATION, state=ValidationState.FAILED, problem="RuntimeError:\n  at line 3\0 of \ud800")

    history.validations.put(failed)

    found = history.validations.get("v-1")
    assert found is not None
    assert found.problem == "RuntimeError:\n  at line 3  of ?"


def test_validations_can_be_narrowed(history: History) -> None:
    history.validations.put(DONE)
    history.validations.put(replace(VALIDATION, validation_id="v-2", gpu="A100", asked_at=NOW + timedelta(seconds=1)))

    def found(**wanted: Any) -> list[str]:
        return [each.validation_id for each in history.validations.newest(**wanted)]

    assert found() == ["v-2", "v-1"]
    assert found(state=ValidationState.RUNNING) == found(gpu="A100") == ["v-2"]
    assert found(plan_id="pl-1", state=ValidationState.DONE) == ["v-1"]


def test_the_calibration_that_was_put_last_is_in_use(history: History, clock: Any) -> None:
    assert history.calibrations.current() is None
    first = StoredCalibration(calibration_id="a", stored_at=clock.now, measurements=3, document={"residuals": [0.01]})
    history.calibrations.put("a", first.document, measurements=3)
    clock.passes(hours=1)
    history.calibrations.put("b", {})

    assert history.calibrations.newest()[1] == first
    assert [each.calibration_id for each in history.calibrations.newest()] == ["b", "a"]

    moment = clock.passes(hours=1)
    history.calibrations.put("a", first.document, measurements=3)

    assert history.calibrations.current() == replace(first, stored_at=moment)
