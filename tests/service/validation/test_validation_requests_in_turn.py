"""The one that runs a service's validations: what it stores, what it leaves behind, and what it makes of that."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planner.errors import MeasureError, TraceError
from planner.job.schema import Job
from planner.records import to_plain
from planner.service.errors import BusyError
from planner.service.history.errors import HistoryUnavailableError
from planner.service.history.records import Validation, ValidationState
from planner.service.history.store import History
from planner.service.validation import requests, runner
from planner.service.validation.measuring_workers import Node, StoppedError
from planner.service.validation.requests import Request, build_request
from planner.service.validation.runner import ValidationRunner, build_conditions
from planner.service.validation.validation_run import Conditions, Result
from planner.settings import Settings

MakeJob = Callable[..., Job]
CLUSTER = (Node(name="a", cpus=4, gpus=2, kind="H100", labelled=True),)


def result(kind: str = "cuda", **more: Any) -> Result:
    document = {"mode": "absent_peers", "device": {"kind": kind}, "ranks": [{"rank": 0, "observation": None}]}
    found = Result(document=document, error_percent=1.5, out_of_memory=False, torch="2.13.0+cu130")
    return dataclasses.replace(found, **more)


class Runs:
    """In the place of the cluster: each run does what is said, as long as it is let."""

    def __init__(self, *outcomes: Result | Exception, held: bool = False) -> None:
        self.outcomes, self.let = list(outcomes), threading.Event()
        self.seen: list[Request] = []
        if not held:
            self.let.set()

    def __call__(
        self, request: Request, conditions: Conditions, *, running: Callable[[], None], stop: threading.Event
    ) -> Result:
        assert conditions.wait_seconds > 0
        self.seen.append(request)
        running()
        while not self.let.wait(0.02):
            if stop.is_set():
                raise StoppedError
        outcome = self.outcomes.pop(0) if self.outcomes else result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@contextmanager
def at_work(
    history: History, runs: Runs, nodes: Sequence[Node] = CLUSTER, **settings: Any
) -> Iterator[ValidationRunner]:
    known = Settings(**settings)
    found = ValidationRunner(history, known, build_conditions(known), runs, lambda: nodes)
    found.begin()
    try:
        yield found
    finally:
        found.close()


def when(history: History, validation_id: str, state: ValidationState) -> Validation:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        found = history.validations.get(validation_id)
        if found is not None and found.state is state:
            return found
        time.sleep(0.01)
    raise AssertionError(f"it never was {state}: {found}")


def request(job: Job, **body: Any) -> Request:
    return build_request(body, job)


def test_it_is_pending_then_running_then_done(history: History, job: MakeJob) -> None:
    runs = Runs(held=True)
    with at_work(history, runs) as here:
        asked = here.start(request(job()))
        assert (asked.state, asked.gpu, asked.mode) == (ValidationState.PENDING, "H100-SXM-80GB", "auto")
        assert asked.plan_id.startswith("pl-")
        when(history, asked.validation_id, ValidationState.RUNNING)
        runs.let.set()
        done = when(history, asked.validation_id, ValidationState.DONE)
    assert (done.error_percent, done.out_of_memory, done.torch, done.mode, done.gpu, done.problem) == (
        1.5, False, "2.13.0+cu130", "absent_peers", "H100-SXM-80GB", "",
    )  # fmt: skip
    shown = requests.validation_json(done)
    assert (shown["state"], shown["device"], shown["ranks"]) == ("done", "cuda", [0])
    assert shown["result"] == result().document


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (MeasureError("the step hung", remedy="ask again"), "the step hung\n  change:  ask again"),
        (TraceError("the step cannot be traced"), "the step cannot be traced"),
        (ZeroDivisionError("of ours"), "a fault of planner itself: ZeroDivisionError('of ours')"),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_else_is_stored(
    fault: Exception, problem: str, history: History, job: MakeJob
) -> None:
    with at_work(history, Runs(fault)) as here:
        asked = here.start(request(job()))
        failed = when(history, asked.validation_id, ValidationState.FAILED)
    assert (failed.problem, failed.error_percent, failed.out_of_memory) == (problem, None, None)
    assert requests.validation_json(failed)["result"] is None


@pytest.mark.parametrize(
    "document",
    [{"mode": "absent_peers"}, {"mode": "absent_peers", "device": {"kind": "cpu"}, "ranks": [object()]}],
    ids=["lacks the device", "cannot be stored"],
)
def test_a_result_that_nobody_can_use_has_failed(document: dict[str, Any], history: History, job: MakeJob) -> None:
    with at_work(history, Runs(result(document=document))) as here:
        asked = here.start(request(job()))
        failed = when(history, asked.validation_id, ValidationState.FAILED)
        assert failed.problem.startswith("a fault of planner itself")
        again = here.start(request(job()))  # its place is free
        when(history, again.validation_id, ValidationState.DONE)


def test_a_measurement_that_cannot_be_believed_has_failed_and_is_shown(history: History, job: MakeJob) -> None:
    with at_work(history, Runs(result("cpu", error_percent=None, problem="its runs disagree"))) as here:
        asked = here.start(request(job()))
        failed = when(history, asked.validation_id, ValidationState.FAILED)
    assert (failed.problem, failed.error_percent) == ("its runs disagree", None)
    assert requests.validation_json(failed)["result"]["ranks"]


def test_more_than_may_wait_are_told_to_come_again(history: History, job: MakeJob) -> None:
    with at_work(history, Runs(held=True), validations_at_once=1, validation_queue=1) as here:
        here.start(request(job()))
        here.start(request(job()))
        with pytest.raises(BusyError, match="2 validations wait already"):
            here.start(request(job()))
        assert len(history.validations.newest()) == 2


def test_no_more_run_at_a_time_than_is_set(history: History, job: MakeJob) -> None:
    runs = Runs(held=True)
    with at_work(history, runs, validations_at_once=2) as here:
        asked = [here.start(request(job())) for _ in range(4)]
        for each in asked[:2]:
            when(history, each.validation_id, ValidationState.RUNNING)
        time.sleep(0.2)  # in which no third begins
        assert len(runs.seen) == 2
        runs.let.set()
        for each in asked:
            when(history, each.validation_id, ValidationState.DONE)


def test_what_a_dead_predecessor_ran_has_failed_and_what_waited_is_run(history: History, job: MakeJob) -> None:
    asked = datetime.now(UTC)
    lost = Validation(
        validation_id="va-lost", plan_id="pl-a", state=ValidationState.RUNNING, asked_at=asked,
        result={requests.ASKED: to_plain(request(job()))},
    )  # fmt: skip
    waited = dataclasses.replace(
        lost, validation_id="va-waited", state=ValidationState.PENDING, asked_at=asked + timedelta(seconds=1)
    )
    unreadable = dataclasses.replace(waited, validation_id="va-unreadable", result={})
    for each in (lost, waited, unreadable):
        history.validations.put(each)
    runs = Runs()
    with at_work(history, runs):
        assert when(history, "va-lost", ValidationState.FAILED).problem == (
            "the process that ran it ended before it was done; ask again"
        )
        assert (
            when(history, "va-unreadable", ValidationState.FAILED).problem
            == "what was asked cannot be read any more ('job'); ask again"
        )
        done = when(history, "va-waited", ValidationState.DONE)
    assert (done.error_percent, runs.seen) == (1.5, [request(job())])


def test_one_that_is_ended_in_order_leaves_all_to_its_successor(history: History, job: MakeJob) -> None:
    with at_work(history, Runs(held=True), validations_at_once=1) as here:
        ran, waited = here.start(request(job())), here.start(request(job()))
        when(history, ran.validation_id, ValidationState.RUNNING)
    for each in (ran, waited):
        when(history, each.validation_id, ValidationState.PENDING)
    with at_work(history, Runs()):
        for each in (ran, waited):
            when(history, each.validation_id, ValidationState.DONE)


def test_a_result_waits_for_a_history_that_is_away(
    history: History, job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PAUSE_SECONDS", 0.02)
    real, away = history.validations.put, [3]

    def put(validation: Validation) -> None:
        if validation.state is ValidationState.DONE and away[0]:
            away[0] -= 1
            raise HistoryUnavailableError("others kept it locked")
        real(validation)

    monkeypatch.setattr(history.validations, "put", put)
    with at_work(history, Runs()) as here:
        asked = here.start(request(job()))
        assert when(history, asked.validation_id, ValidationState.DONE).error_percent == 1.5
    assert away == [0]


def test_what_cannot_be_stored_is_not_begun(history: History, job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(_: Validation) -> None:
        raise HistoryUnavailableError("its disk is full")

    monkeypatch.setattr(history.validations, "put", put)
    runs = Runs()
    with at_work(history, runs, validation_queue=0, validations_at_once=1) as here:
        for _ in range(3):  # and takes nobody's place
            with pytest.raises(HistoryUnavailableError):
                here.start(request(job()))
    assert runs.seen == []
