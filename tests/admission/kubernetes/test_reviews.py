"""AdmissionReviews in and out: what the API server may rely on."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soak import share

from planner.admission import webhook
from planner.admission.decision import Decision
from planner.admission.kubernetes_api import Api, ApiError
from planner.admission.policy import Action, Policy
from planner.admission.webhook import Webhook

PLAN = "pl-" + "a" * 26


def response(decision: Decision | None, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return dict(webhook.answer("u", decision, notes)["response"])


def test_who_is_admitted_hears_nothing_and_the_audit_log_the_plan() -> None:
    decision = Decision(action=Action.ADMIT, reason="it fits", plan_id=PLAN, verdict="fits")

    audit = {"action": "admit", "verdict": "fits", "plan-id": PLAN}
    assert response(decision) == {"uid": "u", "allowed": True, "auditAnnotations": audit}


def test_a_refusal_says_its_text_once_and_differences_as_warnings() -> None:
    decision = Decision(action=Action.REFUSE, reason="no", change="a: 1", plan_id=PLAN, verdict="exceeds")

    assert response(decision, ("other GPUs",)) == {
        "uid": "u",
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": "planner: refused: no\nplanner: the smallest change that fits: a: 1",
        },
        "warnings": ["planner: other GPUs", f"planner: the plan is {PLAN}"],
        "auditAnnotations": {"action": "refuse", "verdict": "exceeds", "plan-id": PLAN},
    }


def test_a_job_that_has_to_wait_is_refused_for_now() -> None:
    decision = Decision(action=Action.HOLD, reason="the plan is not ready", verdict="pending")

    found = response(decision)

    assert (found["allowed"], found["status"]["message"]) == (False, "planner: not yet: the plan is not ready")


def test_a_long_warning_is_told_in_parts_none_longer_than_a_client_is_shown() -> None:
    decision = Decision(action=Action.WARN, reason="word " * 2000, verdict="exceeds")

    found = response(decision)["warnings"]

    assert len(found) == webhook.MOST_WARNINGS
    assert max(len(each) for each in found) <= webhook.LONGEST_WARNING
    assert sum(len(each) for each in found) < 4096


def test_a_warning_has_no_control_characters() -> None:
    decision = Decision(action=Action.WARN, reason="a\x1b[31m\r\nb", verdict="unplannable")

    assert response(decision)["warnings"] == ["planner: a?[31m??b"]


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [("10s", 9.0), ("30s", 27.0), ("3s", 2.0), ("2s", 1.0), ("1s", 0.5), ("", 9.0), ("x", 9.0), ("999s", 27.0)],
)
def test_the_answer_is_there_well_before_the_api_server_stops_waiting(timeout: str, seconds: float) -> None:
    assert webhook.seconds_left(timeout) == seconds


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["metadata", "spec", "template", "containers", "annotations", "planner.dev/bundle", "planner.dev/spec-configmap",
     "kind", "name", "namespace", "uid", "resources", "limits", "nvidia.com/gpu", "nodeSelector", "replicatedJobs",
     "pytorchReplicaSpecs", "rayClusterSpec", "workerGroupSpecs", "parallelism"]
)  # fmt: skip
OBJECTS = st.recursive(
    JSON
    | st.sampled_from(["Job", "RayJob", "JobSet", "PyTorchJob", "model: {decoder: {layers: 1}}", "specs/job.yaml"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=30,
)
REQUESTS = st.fixed_dictionaries(
    {"uid": st.just("u") | JSON},
    optional={
        "operation": st.sampled_from(["CREATE", "CREATE", "UPDATE"]) | JSON,
        "namespace": st.just("nlp") | JSON,
        "kind": st.just({"kind": "Job"}) | JSON,
        "dryRun": JSON,
        "object": OBJECTS
        | st.fixed_dictionaries(
            {"metadata": st.fixed_dictionaries({"annotations": st.dictionaries(NAMES, OBJECTS, max_size=3)})},
            optional={"kind": st.sampled_from(["Job", "RayJob", "JobSet", "PyTorchJob"]), "spec": OBJECTS},
        ),
    },
)
REVIEWS = st.fixed_dictionaries(
    {"apiVersion": st.just("admission.k8s.io/v1"), "kind": st.just("AdmissionReview"), "request": REQUESTS | JSON}
)


def no_cluster() -> Api:
    raise ApiError(0, "there is no cluster in this test")


def posted(body: bytes, policy: Policy, query: str = "") -> httpx.Response:
    async def post() -> httpx.Response:
        app = Webhook(policy, no_cluster).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://webhook") as client:
            return await client.post(f"/validate{query}", content=body, headers={"Content-Type": "application/json"})

    return asyncio.run(post())


# The server of this policy is not there: whatever has a usable spec is a job that nobody can answer for.
NOWHERE = Policy(server="http://127.0.0.1:1", timeout_seconds=0.2, wait_seconds=0)


@settings(
    max_examples=share(300, in_ci=100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(review=REVIEWS)
def test_whatever_a_review_holds_the_answer_is_a_review_or_a_problem(
    review: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    caplog.set_level(logging.WARNING, "planner.admission")

    found = posted(json.dumps(review).encode(), NOWHERE)

    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    document = json.loads(found.content)
    if found.status_code == 200:
        assert document["response"]["uid"] == review["request"]["uid"]
        assert isinstance(document["response"]["allowed"], bool)
        return
    assert (found.status_code, document["type"]) == (400, "urn:planner:problem:review")
    assert "Traceback" not in found.text


@settings(max_examples=share(200, in_ci=100), deadline=None)
@given(body=st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_arrives_is_answered(body: bytes) -> None:
    found = posted(body, NOWHERE)

    assert (found.status_code, found.headers["content-type"]) == (400, "application/problem+json")


def test_a_uid_that_is_no_text_of_utf8_comes_back_as_it_was() -> None:
    request = {"uid": "\ud800", "operation": "CREATE"}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()

    assert posted(body, NOWHERE).json()["response"] == {"uid": "\ud800", "allowed": True}


def test_whatever_takes_too_long_is_answered_in_time_by_the_policy(
    make_job: Callable[..., dict[str, Any]],
    make_review: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    monkeypatch.setattr("planner.admission.service_query.ask", lambda *_: ended.wait())
    body = json.dumps(make_review(make_job("Job", {"planner.dev/bundle": "x"}))).encode()

    found = posted(body, NOWHERE, "?timeout=1s").json()["response"]
    ended.set()

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (True, "unreachable")
    assert found["warnings"] == ["planner: there is no answer within 0.5 s; admitted unchecked"]


def test_a_body_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.admission.webhook._BODY_SECONDS", 0.05)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not waits:
            return {"type": "http.disconnect"}
        await waits.pop()
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    async def post() -> None:
        waits.extend([asyncio.Event().wait(), asyncio.sleep(0)])
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/validate", "query_string": b"", "headers": headers}
        await Webhook(NOWHERE, no_cluster).app()(scope, receive, send)

    waits: list[Any] = []
    asyncio.run(post())

    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["problem"] == "the body does not arrive"


def test_a_fault_of_our_own_is_answered_by_the_policy_for_no_answer(
    make_job: Callable[..., dict[str, Any]],
    make_review: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("planner.admission.service_query.ask", fail)
    body = json.dumps(make_review(make_job("Job", {"planner.dev/bundle": "x"}))).encode()

    found = posted(body, NOWHERE).json()["response"]

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (True, "unreachable")
    assert "ZeroDivisionError" in caplog.text


def test_of_large_reviews_one_is_parsed_at_a_time_and_small_ones_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, begun = threading.Event(), []

    def read(body: bytes) -> webhook.Review:
        if len(body) > webhook.LARGE_BYTES:
            begun.append(body)
            go.wait(60)
        return webhook.Review(uid="u", operation="UPDATE", namespace="n", kind="Job", dry_run=False, job={})

    monkeypatch.setattr(webhook, "read", read)
    app = Webhook(NOWHERE, no_cluster).app()

    async def story() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://planner") as client:

            def ask(size: int) -> Any:
                headers = {"Content-Type": "application/json"}
                return client.post("/validate", content=b" " * size, headers=headers)

            large = [asyncio.create_task(ask(webhook.LARGE_BYTES + 1)) for _ in range(3)]
            while not begun:
                await asyncio.sleep(0)
            small = [await ask(100) for _ in range(3)]
            at_once = len(begun)
            go.set()

            answered = [each.status_code for each in (*small, *await asyncio.gather(*large))]
            assert (answered, at_once, len(begun)) == ([200] * 6, 1, 3)

    asyncio.run(asyncio.wait_for(story(), 60))
