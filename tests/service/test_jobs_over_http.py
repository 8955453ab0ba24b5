"""Jobs tell what they are and what they took: by a scheduler's hook, or by the callback in the training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from planner.report.statement import Plan
from planner.service.history.job_table import Outcome
from planner.service.history.store import History
from planner.service.http.openapi import EXAMPLE_JOB
from planner.truth.measuring.memory_report import report_memory
from planner.units import MIB

Asgi = Callable[..., TestClient]
FIGURES = ("requested", "allocated", "active", "reserved")


@pytest.fixture
def client_of_jobs(asgi: Asgi, history: History, example_plan: Plan) -> TestClient:
    """With one plan, of one rank, to which jobs can be bound."""
    history.plans.put(example_plan)
    return asgi()


def test_a_job_is_bound_to_its_plan_and_told_more_of_later(client_of_jobs: TestClient, example_plan: Plan) -> None:
    path = "/v1/jobs/slurm/4711"
    first = client_of_jobs.put(
        path,
        json={
            "plan_id": example_plan.plan_id,
            "team": "nlp",
            "hosts": ["node-17"],
            "started_at": "2026-01-02T03:04:05Z",
        },
    )
    assert first.status_code == 200, first.text
    later = client_of_jobs.put(
        path,
        json={
            "ended_at": "2026-01-02T04:04:05+00:00",
            "outcome": "finished",
            "measured": [{"rank": 0, "host": "node-17", "allocated_bytes": 5, "reserved_bytes": 7}],
        },
    )

    assert later.json() == {
        "schema": "planner.bound_job/1",
        "system": "slurm",
        "id": "4711",
        "plan_id": example_plan.plan_id,
        "team": "nlp",
        "queue": "h100",
        "hosts": ["node-17"],
        "gpu_uuids": [],
        "lapses_at": None,
        "started_at": "2026-01-02T03:04:05+00:00",
        "ended_at": "2026-01-02T04:04:05+00:00",
        "outcome": "finished",
        "cause": "", "memory": "", "failure": "", "beside_plan": [],
        "measured": [
            {
                "rank": 0, "host": "node-17", "gpu_uuid": "",
                "allocated_bytes": 5, "reserved_bytes": 7, "device_bytes": None,
            }
        ],
    }  # fmt: skip
    assert client_of_jobs.get(path).json() == later.json()


@pytest.mark.parametrize(
    ("body", "status", "place"),
    [
        ({}, 409, "plan_id"),
        ({"plan_id": "pl-" + "a" * 26}, 409, "plan_id"),
        ({"plan_id": "42"}, 422, "plan_id"),
        ({"plan_id": 42}, 422, "plan_id"),
        ({"plan": "pl-"}, 422, "plan"),
        ({"schema": "planner.job/9"}, 422, "schema"),
        ({"system": "ray"}, 409, "system"),
        ({"hosts": "node"}, 422, "hosts"),
        ({"hosts": [1]}, 422, "hosts[0]"),
        ({"started_at": "soon"}, 422, "started_at"),
        ({"plan_id": "{plan}", "started_at": "2026-01-02T03:04:05"}, 422, "started_at"),
        ({"outcome": "lost"}, 422, "outcome"),
        ({"plan_id": "{plan}", "failure": "step 246"}, 422, "failure"),
        ({"measured": [{}]}, 422, "measured[0].rank"),
        ({"measured": [{"rank": True}]}, 422, "measured[0].rank"),
        ({"measured": [{"rank": 0, "device_bytes": 1.5}]}, 422, "measured[0].device_bytes"),
        ({"measured": [{"rank": 0, "memory": 1}]}, 422, "measured[0].memory"),
        ({"plan_id": "{plan}", "measured": [{"rank": 1}]}, 422, "measured.rank"),
        ({"plan_id": "{plan}", "measured": [{"rank": 0, "device_bytes": -1}]}, 422, "measured.device_bytes"),
        ({"ranks": [{"rank": 0, "peak": []}]}, 422, "ranks[0].peak"),
        ({"ranks": [{"rank": 10**30}]}, 422, "ranks[0].rank"),
        ({"measured": [{"rank": n} for n in range(5000)]}, 422, "measured"),
    ],
)
def test_what_no_job_can_be_is_refused_by_its_place(
    client_of_jobs: TestClient, example_plan: Plan, body: dict[str, Any], status: int, place: str
) -> None:
    text = json.dumps(body).replace("{plan}", example_plan.plan_id)
    answer = client_of_jobs.put("/v1/jobs/slurm/1", content=text, headers={"content-type": "application/json"})

    assert (answer.status_code, answer.json().get("place")) == (status, place)
    assert client_of_jobs.get("/v1/jobs/slurm/1").status_code == 404


def test_the_callback_of_a_real_training_is_heard(
    service: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report as planner.truth.measuring.memory_report sends it, not as a test writes it down."""
    plan = client.post("/v1/plans", json=EXAMPLE_JOB).json()
    levels = iter(range(1, 100))

    def read() -> Mapping[str, int]:
        now = next(levels) * MIB
        ends = {f"{name}_bytes.all.{end}": now for name in FIGURES for end in ("current", "peak")}
        return {**ends, "num_alloc_retries": 0}

    monkeypatch.setenv("PLANNER_PLAN_ID", plan["plan_id"])
    with report_memory(server=service.base_url, system="slurm", id="a/job 1", team="vision", read=read) as memory:
        for _ in range(3):
            memory.step()

    assert client.get("/v1/jobs/slurm/a%2Fjob%201").json()["id"] == "a/job 1"
    found = service.history.jobs.get("slurm", "a/job 1")
    assert (found.plan_id, found.team, found.outcome) == (plan["plan_id"], "vision", Outcome.FINISHED)
    assert found.started_at <= found.ended_at
    (rank,) = found.measured
    report = service.history.jobs.reports("slurm", "a/job 1")[0]
    assert rank.allocated_bytes == rank.reserved_bytes == report["peak"]["allocated_bytes"] > 3 * MIB
    assert rank.device_bytes is None  # nothing was measured: this machine has no GPU
    assert report["steps"] == 3
