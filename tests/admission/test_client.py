"""How a hook asks the service, and what it makes of services that are slow, busy, strange or not there."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from planner.admission.client import Client, PlanFound, PlanPending, UnplannableError, UnreachableError
from planner.admission.decision import Decision, decide
from planner.admission.policy import Action, Policy
from planner.admission.service_query import ask, bind
from planner.errors import SettingError, SpecError
from planner.job.loading import bundle, load_document
from planner.report.statement import from_json

Plans = dict[str, dict[str, Any]]
BUNDLE = {"schema": "planner.bundle/1", "metadata": {"name": "mine"}}


def client(answering: Any, **more: Any) -> Client:
    return Client(answering.url, "secret", system="slurm", **more)


def test_a_check_and_then_its_plan_under_the_name_of_this_job(answering: Any, plans: Plans) -> None:
    answering.knows(plans["fits"])

    found = client(answering).plan(BUNDLE, 5)

    assert isinstance(found, PlanFound)
    assert found.plan == {**plans["fits"], "job": {**plans["fits"]["job"], "metadata": {"name": "mine"}}}
    check, plan = answering.asked
    assert (check.method, check.path, check.body) == ("POST", "/v1/checks", BUNDLE)
    assert check.headers["Authorization"] == "Bearer secret"
    assert check.headers["X-Planner-System"] == "slurm"
    assert check.headers["Prefer"] in ("wait=4", "wait=5")
    assert (plan.method, plan.path) == ("GET", f"/v1/plans/{plans['fits']['plan_id']}")


def test_a_plan_that_is_pending_is_asked_for_again_as_the_same_check(answering: Any, plans: Plans) -> None:
    answering.says(202, {"plan_id": "pl-x", "verdict": "pending"})
    answering.knows(plans["fits"])

    assert isinstance(client(answering).plan(BUNDLE, 5), PlanFound)
    assert len({each.headers["X-Planner-Check"] for each in answering.asked[:2]}) == 1


def test_a_plan_that_takes_longer_stays_pending(answering: Any) -> None:
    answering.says(202, {"plan_id": "pl-x", "verdict": "pending"})

    assert client(answering).plan(BUNDLE, 0) == PlanPending(plan_id="pl-x")
    assert len(answering.asked) == 1


def test_a_plan_that_is_not_in_the_store_is_asked_for_with_the_job(answering: Any, plans: Plans) -> None:
    answering.says(200, {"plan_id": "pl-x", "verdict": "fits"})
    answering.says(404, {"type": "urn:planner:problem:not-found", "problem": "there is no plan"})
    answering.says(200, plans["fits"])

    assert isinstance(client(answering).plan(BUNDLE, 5), PlanFound)
    assert [each.path for each in answering.asked] == ["/v1/checks", "/v1/plans/pl-x", "/v1/plans"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(answering: Any, plans: Plans, status: int) -> None:
    pauses: list[float] = []
    answering.says(status, {"type": "urn:planner:problem:busy"}, Retry_After="2")
    answering.says(status, b"<html>busy</html>")
    answering.knows(plans["fits"])

    assert isinstance(client(answering, pause=pauses.append).plan(BUNDLE, 5), PlanFound)
    assert pauses == [2.0, 1.0]


def test_a_service_that_stays_busy_is_unreachable_when_the_time_is_over(answering: Any) -> None:
    answering.says(503, {"type": "urn:planner:problem:busy", "problem": "too much at once"}, Retry_After="60")

    with pytest.raises(UnreachableError, match="answers 503: too much at once"):
        client(answering).plan(BUNDLE, 5)


@pytest.mark.parametrize(
    ("status", "document", "headers", "said"),
    [
        (404, b"Not Found", {}, "answers 404, and not as a planner does"),
        (404, {"detail": "Not Found"}, {}, "answers 404"),
        (200, b"<html>hello</html>", {}, "answers 200, and not as a planner does"),
        (200, [1], {}, "answers 200, and not as a planner does"),
        (500, {"problem": "a fault"}, {}, "answers 500: a fault"),
        (401, {"type": "urn:planner:problem:unauthorized"}, {}, "does not know our token"),
        (302, b"", {"Location": "http://127.0.0.1:1/elsewhere"}, "answers 302"),
    ],
)
def test_whatever_does_not_answer_as_a_planner_is_unreachable(
    answering: Any, status: int, document: Any, headers: dict[str, str], said: str
) -> None:
    answering.says(status, document, **headers)

    with pytest.raises(UnreachableError, match=said):
        client(answering).plan(BUNDLE, 2)
    assert len(answering.asked) == 1  # a redirect is not followed: neither job nor token goes elsewhere


def test_a_job_that_the_service_cannot_plan_is_told_with_the_way_out(answering: Any) -> None:
    answering.says(422, {"type": "urn:planner:problem:spec", "problem": "no", "allowed": "yes", "place": "here"})

    with pytest.raises(UnplannableError, match=r"here: no\n  allowed: yes"):
        client(answering).plan(BUNDLE, 2)


def test_a_service_that_hangs_costs_the_timeout(answering: Any) -> None:
    answering.says(200, {})
    answering.held.clear()

    with pytest.raises(UnreachableError, match=r"does not answer within 0\.3 s"):
        client(answering, timeout_seconds=0.3).plan(BUNDLE, 30)


def test_a_service_that_answers_others_is_waited_for(answering: Any, plans: Plans) -> None:
    answering.says(200, {})
    answering.knows(plans["fits"])
    answering.follows = {"/v1/checks": "/livez"}

    found = client(answering, timeout_seconds=6.0).plan(BUNDLE, 600)

    assert isinstance(found, PlanFound)
    assert [each.path for each in answering.asked][:2] == ["/v1/checks", "/livez"]


def test_a_service_that_hangs_behind_its_verdict_is_asked_for_the_plan_once(answering: Any) -> None:
    answering.says(200, {"plan_id": "pl-x", "verdict": "fits"})
    answering.hangs_at = "/v1/plans"

    with pytest.raises(UnreachableError, match=r"does not answer within 0\.3 s"):
        client(answering, timeout_seconds=0.3).plan(BUNDLE, 30)
    assert [each.path for each in answering.asked] == ["/v1/checks", "/v1/plans/pl-x"]


def test_an_answer_that_trickles_costs_the_timeout_too() -> None:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                with suppress(OSError):
                    while not over.wait(0.1):
                        connection.sendall(b" ")

        threading.Thread(target=trickle, daemon=True).start()
        with pytest.raises(UnreachableError, match="does not answer within"):
            Client(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=0.5).plan(BUNDLE, 0)
        over.set()


def test_a_service_that_is_not_there_is_said() -> None:
    with pytest.raises(UnreachableError, match="Connection refused"):
        Client("http://127.0.0.1:1").plan(BUNDLE, 2)


def test_only_http_is_spoken() -> None:
    with pytest.raises(ValueError, match="http"):
        Client("file:///etc/passwd")


@pytest.mark.parametrize(("answer", "action"), [(Action.ADMIT, Action.WARN), (Action.REFUSE, Action.REFUSE)])
def test_a_spec_that_cannot_be_used_is_the_policys_too(answer: Action, action: Action) -> None:
    def broken() -> Any:
        raise SpecError("train.precision is bf16", allowed="bf16_autocast", place="job.yaml:3:1")

    found = ask(broken, Policy(server="http://127.0.0.1:1", unplannable=answer), "ray")

    assert (found.action, found.verdict) == (action, "unplannable")
    assert "job.yaml:3:1: train.precision is bf16; allowed: bf16_autocast" in found.reason


def test_an_error_in_one_line_keeps_its_parts_apart() -> None:
    """Helm, Slurm's comments and the warnings of kubectl have one line for each reason."""
    error = SpecError(
        "there is no 'job.toml'\nin the folder of the job", allowed=".yaml", remedy="rename it", place="the spec"
    )

    assert error.one_line == (
        "the spec: there is no 'job.toml' in the folder of the job; allowed: .yaml; change: rename it"
    )
    assert SpecError("it is empty").one_line == "it is empty"


def test_no_service_is_a_setting_that_is_missing() -> None:
    with pytest.raises(SettingError, match="no planner service is set"):
        ask(lambda: BUNDLE, Policy(), "ray")


def test_an_admitted_job_is_bound_to_its_plan(answering: Any) -> None:
    answering.says(200, {})
    decision = Decision(action=Action.ADMIT, reason="", plan_id="pl-x", verdict="fits")

    said = bind(Policy(server=answering.url), "ray", "a/b c", decision, {"team": "nlp"})

    assert said == ""
    (told,) = answering.asked
    assert (told.method, told.path) == ("PUT", "/v1/jobs/ray/a%2Fb%20c")
    assert told.body == {"plan_id": "pl-x", "team": "nlp"}


def test_a_binding_that_fails_is_said_and_stops_nobody() -> None:
    decision = Decision(action=Action.ADMIT, reason="", plan_id="pl-x", verdict="fits")

    assert "is not bound to its plan" in bind(Policy(server="http://127.0.0.1:1"), "ray", "x", decision)


def test_the_client_speaks_the_services_own_words(service: Any, job_document: dict[str, Any]) -> None:
    """Against the service itself, over a socket."""
    job = bundle(load_document({**job_document, "metadata": {"name": "spoken"}}))
    asked = Client(service.url, service.token, system="slurm")

    found = asked.plan(job, 30)

    assert isinstance(found, PlanFound)
    assert found.plan["job"]["metadata"]["name"] == "spoken"
    decision = decide(from_json(found.plan), Policy())
    assert (decision.action, decision.verdict) == (Action.ADMIT, "fits")
    assert bind(Policy(server=service.url, token=service.token), "slurm", "4711", decision) == ""
    assert service.history.jobs.get("slurm", "4711").plan_id == decision.plan_id
    assert decision.plan_id in [each["plan_id"] for each in asked.newest()]


def test_the_services_refusals_are_understood(service: Any, job_document: dict[str, Any]) -> None:
    asked = Client(service.url, service.token)

    with pytest.raises(UnplannableError, match=r"train\.precision"):
        asked.plan({**job_document, "train": {"precision": "bf16"}}, 5)
    with pytest.raises(UnreachableError, match="does not know our token"):
        Client(service.url, "wrong").plan(job_document, 5)
    with pytest.raises(UnplannableError, match="there is no plan"):
        asked.plan_of("pl-" + "z" * 26)
