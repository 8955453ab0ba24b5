"""What many processes count together: nothing is lost, nothing is counted twice, and the dead fall silent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from planner.report.statement import Verdict
from planner.service.history.counters import Counters, SharedFigures, Totals
from planner.service.history.errors import HistoryError, HistoryUnavailableError
from planner.service.history.records import Check, Validation, ValidationState
from planner.service.history.store import History

ASKED = ("asked", (("route", "/v1/plans"),))
BUSY = ("busy", ())


class Unreliable:
    """A history that fails before it stores a batch, or after: the caller cannot tell which."""

    def __init__(self, totals: Totals) -> None:
        self.totals, self.fails = totals, ""

    def add(self, *batch: Any) -> bool:
        if self.fails == "before":
            raise HistoryUnavailableError("it is not there")
        added = self.totals.add(*batch)
        if self.fails == "after":
            raise HistoryUnavailableError("it went away")
        return added

    def leave(self, writer: str) -> None:
        self.totals.leave(writer)


def test_what_two_processes_count_adds_up(history: History) -> None:
    one, other = Counters(history.totals), Counters(history.totals)
    one.add("asked", {"route": "/v1/plans"})
    one.add("asked", {"route": "/v1/plans"}, 2)
    one.set("busy", {}, 2)
    one.flush()
    other.add("asked", {"route": "/v1/plans"}, 4)
    other.add("asked", {"route": "/v1/checks"})
    other.set("busy", {}, 3)
    other.set("busy", {}, 1)
    other.flush()

    assert history.totals.figures() == SharedFigures(
        totals={ASKED: 7, ("asked", (("route", "/v1/checks"),)): 1}, levels={BUSY: 3}, writers=2
    )


def test_a_value_is_counted_into_the_first_bound_that_holds_it(history: History) -> None:
    counters = Counters(history.totals)
    for value in (0.05, 0.1, 0.2, 9):
        counters.observe("seconds", {"route": "/"}, value, (0.1, 0.5))
    counters.flush()

    buckets = {le: ("seconds_bucket", (("route", "/"), ("le", le))) for le in ("0.1", "0.5", "+Inf")}
    assert history.totals.figures().totals == {
        buckets["0.1"]: 2, buckets["0.5"]: 1, buckets["+Inf"]: 1,
        ("seconds_sum", (("route", "/"),)): pytest.approx(9.35),
    }  # fmt: skip


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_flush_that_fails_neither_loses_nor_doubles(history: History, fails: str) -> None:
    unreliable = Unreliable(history.totals)
    counters = Counters(unreliable)  # type: ignore[arg-type]
    counters.add("asked", {"route": "/v1/plans"}, 5)
    unreliable.fails = fails
    for _ in range(3):
        with pytest.raises(HistoryUnavailableError):
            counters.flush()
    counters.add("asked", {"route": "/v1/plans"}, 2)  # meanwhile others are served
    counters.set("busy", {}, 4)
    unreliable.fails = ""
    counters.flush()
    counters.flush()

    assert history.totals.figures() == SharedFigures(totals={ASKED: 7}, levels={BUSY: 4}, writers=1)


def test_threads_count_while_others_flush(shared_url: str) -> None:
    with History.open(shared_url) as history:
        processes = [Counters(history.totals) for _ in range(2)]

        def count(number: int) -> None:
            counters = processes[number % 2]
            for turn in range(200):
                counters.add("asked", {"route": "/v1/plans"})
                counters.observe("seconds", {"route": "/"}, turn, (100,))
                if turn % 50 == number:
                    counters.flush()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(count, range(8)))
        for counters in processes:
            counters.close()

        totals = history.totals.figures().totals
        assert totals[ASKED] == 1600
        assert totals["seconds_sum", (("route", "/"),)] == 8 * sum(range(200))


def test_it_flushes_by_itself_and_says_good_bye(history: History) -> None:
    with Counters(history.totals, every=0.01) as counters:
        counters.set("busy", {}, 1)
        counters.add("asked", {"route": "/v1/plans"})
        for _ in range(500):
            if history.totals.figures().totals:
                break
            counters._ended.wait(0.01)
        assert history.totals.figures() == SharedFigures(totals={ASKED: 1}, levels={BUSY: 1}, writers=1)
        counters.add("asked", {"route": "/v1/plans"}, 9)

    assert history.totals.figures() == SharedFigures(totals={ASKED: 10})


def test_the_end_of_a_process_is_not_held_up_by_a_history_that_is_gone(history: History) -> None:
    unreliable = Unreliable(history.totals)
    unreliable.fails = "before"
    with Counters(unreliable, every=0.01) as counters:  # type: ignore[arg-type]
        counters.add("asked", {})

    assert history.totals.figures() == SharedFigures()


def test_levels_of_a_process_that_fell_silent_are_not_believed(history: History, clock: Any) -> None:
    counters = Counters(history.totals)
    counters.add("asked", {"route": "/v1/plans"})
    counters.set("busy", {}, 4)
    counters.flush()
    clock.passes(seconds=29)
    assert history.totals.figures().levels == {BUSY: 4}
    clock.passes(seconds=2)

    assert history.totals.figures() == SharedFigures(totals={ASKED: 1})

    counters.flush()
    assert history.totals.figures().levels == {BUSY: 4}


def test_what_cannot_be_counted_is_refused_and_told(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.service.history.counters.MOST_SERIES", 2)
    counters = Counters(history.totals)
    counters.add("asked", {}, float("nan"))
    counters.add("asked", {}, float("inf"))
    counters.add("asked", {}, -1)
    counters.add("asked", {"route": "ü" * 100})
    for number in range(4):
        counters.add("asked", {"number": str(number)})
    counters.flush()

    assert counters.refused == 6
    assert history.totals.figures().totals == {("asked", (("number", str(number)),)): 1 for number in (0, 1)}


def test_labels_too_long_for_a_key_are_refused_by_the_history_too(history: History) -> None:
    with pytest.raises(HistoryError, match="labels of"):
        history.totals.add("one", 1, {("asked", (("route", "x" * 500),)): 1}, {})

    assert history.totals.figures() == SharedFigures()


def test_a_verdict_counts_once_and_is_not_forgotten(history: History, clock: Any) -> None:
    check = Check(check_id="a", plan_id="pl-1", asked_at=clock.now)
    history.checks.put(check)
    answered = Check(check_id="a", plan_id="pl-1", asked_at=clock.now, verdict=Verdict.EXCEEDS)
    for _ in range(3):
        history.checks.put(answered)
    history.checks.put(Check(check_id="b", plan_id="pl-1", asked_at=clock.now, verdict=Verdict.FITS))

    assert history.totals.figures().totals == {
        ("verdicts", (("verdict", "exceeds"),)): 1,
        ("verdicts", (("verdict", "fits"),)): 1,
    }


def test_an_error_counts_when_its_validation_ends(history: History, clock: Any) -> None:
    def put(name: str, state: ValidationState, error: float | None) -> None:
        history.validations.put(
            Validation(
                validation_id=name, plan_id="pl-1", state=state, asked_at=clock.passes(seconds=1), gpu="H100" * 40,
                torch="2.13.0", error_percent=error,
            )
        )  # fmt: skip

    put("a", ValidationState.RUNNING, None)
    for _ in range(2):
        put("a", ValidationState.DONE, 1.5)
    put("b", ValidationState.FAILED, None)
    put("c", ValidationState.DONE, 0.04)

    labels = (("gpu", ("H100" * 40)[:60]), ("torch", "2.13.0"))
    assert history.totals.figures().totals == {
        ("validation_error_bucket", (*labels, ("le", "0.02"))): 1,
        ("validation_error_bucket", (*labels, ("le", "0.001"))): 1,
        ("validation_error_sum", labels): pytest.approx(0.0154),
    }
    assert history.validations.errors() == {("H100" * 40, "2.13.0"): (0.04, 1.5)}
    assert history.validations.counts() == {ValidationState.DONE: 2, ValidationState.FAILED: 1}
