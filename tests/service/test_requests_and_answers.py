"""What is asked over HTTP and how it is answered, without Ray: by a plan_provider of the test's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from stored import all_checks

from planner.errors import FactoryNotAllowedError, TraceError
from planner.job.bound.lower_bound import lower_bound
from planner.job.loading import bundle, load_document
from planner.job.named_gpus import look_up
from planner.report.statement import Plan, Verdict
from planner.report.verdict_text import job_sentence
from planner.service.errors import (
    BusyError,
    DeadlineError,
    TraceLimitError,
    WorkerLostError,
)
from planner.service.history.store import History
from planner.service.http.openapi import EXAMPLE_JOB, EXAMPLE_YAML
from planner.service.orders import describe_walls
from planner.settings import Settings

Asgi = Callable[..., TestClient]
TOKEN = "correct horse battery staple"
TOKEN_SHA256 = "c4bbcb1fbec99d65bf59d85c8cb62ee2db963f0fe106f483d9afa73bd4e39a8a"


def test_a_bundle_a_spec_and_yaml_are_the_same_job(asgi: Asgi, plan_provider: Any) -> None:
    client = asgi()
    yaml = {"content-type": "application/yaml"}

    answers = [
        client.post("/v1/plans", json=EXAMPLE_JOB),
        client.post("/v1/plans", json=bundle(load_document(EXAMPLE_JOB))),
        client.post("/v1/plans", content=EXAMPLE_YAML, headers=yaml),
    ]

    assert {(answer.status_code, answer.text) for answer in answers} == {(200, plan_provider.text)}
    jobs = [replace(job, metadata=jobs_metadata(job)) for job, _ in plan_provider.asked]
    assert jobs[0] == jobs[1] == jobs[2]


def jobs_metadata(job: Any) -> Any:
    """Without the queue, which the example in YAML does not name."""
    return replace(job.metadata, queue="")


def test_a_plan_says_where_it_is_found(asgi: Asgi, example_plan: Plan) -> None:
    answer = asgi().post("/v1/plans", json=EXAMPLE_JOB)

    assert answer.headers["location"] == f"/v1/plans/{example_plan.plan_id}"
    assert answer.headers["x-planner-stored"] == "true"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("prefer", "seconds", "applied"),
    [
        ("wait=7", 7.0, "wait=7"),
        ('wait="7"; x=y, handling=lenient', 7.0, "wait=7"),
        ("wait=99999999", 3600.0, "wait=3600"),
        ("wait=-1", None, None),
        ("wait=soon", None, None),
        ("=;,,;=", None, None),
        (f'wait={" " * 20_000}""x', None, None),
    ],
)
def test_a_client_says_how_long_it_waits(
    asgi: Asgi, plan_provider: Any, prefer: str, seconds: float | None, applied: str | None
) -> None:
    answer = asgi().post("/v1/plans", json=EXAMPLE_JOB, headers={"Prefer": prefer})

    assert answer.status_code == 200
    assert plan_provider.asked[0][1] == seconds
    assert answer.headers.get("preference-applied") == applied


def test_a_client_would_rather_come_back(asgi: Asgi, plan_provider: Any, example_plan: Plan) -> None:
    plan_provider.pending = True
    answer = asgi().post("/v1/plans", json=EXAMPLE_JOB, headers={"Prefer": "respond-async, wait=1"})

    assert (answer.status_code, answer.headers["retry-after"]) == (202, "2")
    assert answer.headers["location"] == f"/v1/plans/{example_plan.plan_id}"
    assert answer.json()["verdict"] == "pending"


def test_plans_are_listed_newest_first_and_found_by_id(asgi: Asgi, history: History, example_plan: Plan) -> None:
    others = [replace(example_plan, plan_id=f"pl-{letter * 26}") for letter in "abc"]
    for plan in others:
        history.plans.put(plan)
    client = asgi()

    listed = client.get("/v1/plans?limit=2&team=nlp&verdict=fits").json()["plans"]
    rest = client.get("/v1/plans", params={"before": listed[-1]["stored_at"]}).json()["plans"]

    assert [each["plan_id"][3] for each in [*listed, *rest]] == ["c", "b", "a"]
    assert client.get("/v1/plans?queue=other").json()["plans"] == []
    assert client.get(f"/v1/plans/{others[0].plan_id}").text == history.plans.text(others[0].plan_id)
    assert client.get("/v1/plans/pl-none").status_code == 404


def test_a_check_says_the_verdict_in_one_line_and_is_remembered(
    asgi: Asgi, history: History, example_plan: Plan
) -> None:
    answer = asgi().post("/v1/checks", json=EXAMPLE_JOB, headers={"X-Planner-System": "slurm"})

    statement = example_plan.rank_classes[0]
    said = answer.json()
    assert answer.status_code == 200
    assert said == {
        "schema": "planner.check/1",
        "check_id": said["check_id"],
        "plan_id": example_plan.plan_id,
        "trace_id": example_plan.trace_id,
        "verdict": "fits",
        "calibrated": False,
        "device_bytes": statement.peak.device_bytes,
        "interval_bytes": list(statement.peak.interval_bytes),
        "capacity_bytes": statement.capacity_bytes,
        "headroom_bytes": statement.headroom_bytes,
        "message": job_sentence(example_plan),
    }
    (check,) = all_checks(history)
    assert (check.verdict, check.system, check.team) == (Verdict.FITS, "slurm", "nlp")


HOPELESS = {
    **EXAMPLE_JOB,
    "model": {"decoder": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}},
}
"""An 8B model with AdamW in float32 on one GPU of 80 GB: 120 GiB without a single activation."""


def test_a_job_that_is_too_large_whatever_its_plan_says_exceeds_at_once(
    asgi: Asgi, plan_provider: Any, history: History, example_plan: Plan
) -> None:
    plan_provider.pending = True
    answer = asgi(check_seconds=0.5).post("/v1/checks", json=HOPELESS)

    said = answer.json()
    least = lower_bound(load_document(HOPELESS)).least_bytes
    capacity = look_up("H100-SXM-80GB").total_bytes
    assert answer.status_code == 200
    assert said == {
        "schema": "planner.check/1",
        "check_id": said["check_id"],
        "plan_id": example_plan.plan_id,
        "trace_id": example_plan.trace_id,
        "verdict": "exceeds",
        "calibrated": False,
        "device_bytes": least,
        "interval_bytes": [least, least],
        "capacity_bytes": capacity,
        "headroom_bytes": capacity - least,
        "message": "tiny does not fit: a rank needs at least 120.23 GiB, 79.10 GiB available (H100-SXM-80GB) "
        "(parameters, optimizer state, CUDA context, and gradients or what a forward saves)",
        "basis": "lower_bound",
    }
    assert plan_provider.asked[0][1] == 0.0  # the plan is made, and nobody waits for it
    assert history.checks.counts() == {Verdict.EXCEEDS: 1}


def test_a_plan_that_is_there_says_more_than_a_bound(asgi: Asgi, example_plan: Plan) -> None:
    said = asgi().post("/v1/checks", json=HOPELESS).json()

    assert (said["verdict"], said["message"]) == (example_plan.verdict, job_sentence(example_plan))
    assert "basis" not in said


def test_a_pending_check_says_what_the_job_takes_at_least(asgi: Asgi, plan_provider: Any) -> None:
    plan_provider.pending = True
    said = asgi().post("/v1/checks", json=EXAMPLE_JOB).json()

    assert (said["verdict"], said["least_bytes"]) == ("pending", lower_bound(load_document(EXAMPLE_JOB)).least_bytes)


def test_a_pending_check_that_is_asked_again_is_one_check(asgi: Asgi, plan_provider: Any, history: History) -> None:
    client = asgi(check_seconds=0.5)
    plan_provider.pending = True
    first = client.post("/v1/checks", json=EXAMPLE_JOB)
    assert (first.status_code, first.json()["verdict"], plan_provider.asked[0][1]) == (202, "pending", 0.5)
    assert history.checks.counts() == {None: 1}

    plan_provider.pending = False
    again = client.post("/v1/checks", json=EXAMPLE_JOB, headers={"X-Planner-Check": first.json()["check_id"]})

    assert again.json()["verdict"] == "fits"
    assert history.checks.counts() == {Verdict.FITS: 1}


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (BusyError("many wait", retry_after_seconds=9), 429),
        (DeadlineError("not ready"), 504),
        (FactoryNotAllowedError("no code"), 403),
        (TraceLimitError("takes too long"), 422),
        (WorkerLostError("died twice"), 503),
        (TraceError("no such op", place="model.layers.0", allowed="others", remedy="use them"), 422),
        (RuntimeError("a secret of ours"), 500),
    ],
)
def test_what_goes_wrong_is_a_problem_that_says_what_to_do(
    asgi: Asgi, plan_provider: Any, fault: Exception, status: int
) -> None:
    plan_provider.fault = fault
    answer = asgi().post("/v1/plans", json=EXAMPLE_JOB)

    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers.get("retry-after") == {429: "9", 503: "5"}.get(status)
    if isinstance(fault, TraceError):
        assert {name: answer.json()[name] for name in ("problem", "allowed", "remedy", "place")} == {
            "problem": "no such op", "allowed": "others", "remedy": "use them", "place": "model.layers.0",
        }  # fmt: skip


@pytest.mark.parametrize("method", ["POST /v1/plans", "POST /v1/checks", "PUT /v1/jobs/slurm/1"])
@pytest.mark.parametrize("said", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"])
def test_a_write_needs_the_token_where_one_is_set(
    asgi: Asgi, caplog: pytest.LogCaptureFixture, method: str, said: str
) -> None:
    caplog.set_level(logging.DEBUG, "planner")
    verb, path = method.split()
    headers = {"authorization": said.encode("latin-1")} if said else {}
    answer = asgi(token_sha256=TOKEN_SHA256).request(verb, path, content=b"x" * 100, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert not [record for record in caplog.records if TOKEN in record.getMessage()]


def test_who_has_the_token_writes_and_all_read(asgi: Asgi) -> None:
    client = asgi(token_sha256=f"{'0' * 64},{TOKEN_SHA256.upper()}")

    assert client.post("/v1/plans", json=EXAMPLE_JOB, headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    assert client.get("/v1/plans").status_code == 200


def test_too_many_at_once_are_sent_away_and_a_probe_is_not(asgi: Asgi) -> None:
    client = asgi(most_at_once=0)
    answer = client.get("/v1/plans")

    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert client.get("/livez").json() == {"status": "alive"}


def test_readiness_says_what_is_missing(asgi: Asgi) -> None:
    async def hangs_up() -> None:
        raise WorkerLostError("no tracing process is ready")

    assert asgi().get("/readyz").json() == {"status": "ready"}
    answer = asgi(tracers_ready=hangs_up).get("/readyz")
    assert (answer.status_code, answer.json()["problem"]) == (503, "no tracing process is ready")


def test_a_service_that_cannot_run_code_of_users_is_ready_and_says_so(asgi: Asgi) -> None:
    async def runs_no_code() -> str:
        return "code of users is not run here"

    answer = asgi(tracers_ready=runs_no_code).get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200, {"status": "ready", "warning": "code of users is not run here"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({}, ""),
        ({"factories": "shop.*", "factories_as_root": True}, ""),
        (
            {"factories": "shop.*"},
            "code of users is not run here: the service runs as root (PLANNER_FACTORIES_AS_ROOT says that this is "
            "meant); change: leave PLANNER_FACTORIES empty, or set the node up (docs/security.md)",
        ),
        (
            {"programs": True},
            "code of users is not run here: the service runs as root (PLANNER_FACTORIES_AS_ROOT says that this is "
            "meant); change: set the node up (docs/security.md), or run the program with the command line",
        ),
    ],
)
def test_what_the_sandbox_lacks_is_said_where_it_is_needed(settings: dict[str, Any], warning: str) -> None:
    assert describe_walls(Settings(**settings)) == warning


def test_a_service_whose_database_was_moved_away_is_not_ready_until_it_is_back(asgi: Asgi, tmp_path: Path) -> None:
    client, file = asgi(), tmp_path / "history.db"
    assert client.get("/readyz").status_code == 200

    moved = file.rename(tmp_path / "moved.db")
    answer = client.get("/readyz")
    assert (answer.status_code, "moved or deleted" in answer.text) == (503, True)

    moved.rename(file)
    assert client.get("/readyz").status_code == 200


def test_each_request_is_one_line_with_its_ids_and_no_query(
    asgi: Asgi, caplog: pytest.LogCaptureFixture, example_plan: Plan
) -> None:
    from planner.service.logs import JsonLines

    caplog.set_level(logging.INFO, "planner.service")
    client = asgi()
    client.post("/v1/plans?key=hidden", json=EXAMPLE_JOB, headers={"X-Request-ID": "abc-1"})
    client.get("/readyz")
    client.get("/v1/plans/pl-x", headers={"X-Request-ID": 'x" injected'})

    first, second = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert (first["request_id"], first["plan_id"], first["route"], first["status"]) == (
        "abc-1", example_plan.plan_id, "/v1/plans", 200,
    )  # fmt: skip
    assert first["seconds"] >= 0
    assert "hidden" not in json.dumps(first)
    assert (second["route"], second["status"], second.get("request_id")) == ("/v1/plans/{plan_id}", 404, None)


def test_each_request_is_counted_by_its_route(asgi: Asgi, counted: list[tuple[str, Mapping[str, str]]]) -> None:
    client = asgi()
    client.get("/v1/plans/pl-x")
    client.get("/no/such/path")
    client.request("BREW", "/v1/plans")

    assert [labels for name, labels in counted if name == "planner_requests_total"] == [
        {"route": "/v1/plans/{plan_id}", "method": "GET", "status": "404"},
        {"route": "other", "method": "GET", "status": "404"},
        {"route": "/v1/plans", "method": "other", "status": "405"},
    ]
