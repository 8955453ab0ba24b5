"""Memory over time comes over HTTP: of a stored plan from its trace, of a snapshot from what was recorded."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from stored import put_traces

from planner.job.loading import load_document
from planner.planning.plan import PlanningResult, plan_job
from planner.report.statement import Plan
from planner.service.history.job_table import JobChange, MeasuredRank
from planner.service.history.store import History
from planner.service.http.openapi import EXAMPLE_JOB

Asgi = Callable[..., TestClient]


@pytest.fixture(scope="module")
def planned() -> PlanningResult:
    return plan_job(load_document(EXAMPLE_JOB))


@pytest.fixture
def stored(history: History, planned: PlanningResult) -> Plan:
    history.plans.put(planned.plan)
    put_traces(history, planned.plan.trace_id, {0: planned.traces[0].trace})
    return planned.plan


def test_every_moment_adds_up_and_the_peak_is_the_plans(asgi: Asgi, stored: Plan) -> None:
    found = asgi().get(f"/v1/plans/{stored.plan_id}/timeline").json()

    (ranks,) = stored.rank_classes
    allocated = [sum(sizes) for sizes in zip(*found["allocated_bytes"].values(), strict=True)]
    assert max(allocated) == ranks.peak.allocated_bytes
    assert max(found["reserved_bytes"]) == ranks.peak.reserved_bytes
    peak = found["at"].index(found["peak"]["event"])
    by_category: dict[str, int] = {}
    for holder, size, _ in found["held"][peak]:
        category = found["who"][holder]["category"]
        by_category[category] = by_category.get(category, 0) + size
    assert all(size <= ranks.at_peak[category] for category, size in by_category.items())  # type: ignore[index]
    for held, whole in zip(found["held"], allocated, strict=True):
        sizes = [size for _, size, _ in held]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) <= whole
        if len(sizes) < 6:
            assert sum(sizes) == whole


@pytest.mark.parametrize(
    ("path", "status", "problem"),
    [
        ("/v1/plans/pl-nothing/timeline", 404, "there is no plan 'pl-nothing'"),
        ("/v1/plans/{id}/timeline?rank=5", 422, "rank 5 represents no class of this plan"),
        ("/v1/plans/{id}/timeline?rank=x", 422, ""),
    ],
)
def test_what_has_no_timeline_is_said(asgi: Asgi, stored: Plan, path: str, status: int, problem: str) -> None:
    answer = asgi().get(path.format(id=stored.plan_id))

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["problem"].startswith(problem)


def test_a_plan_whose_trace_is_gone_says_so(asgi: Asgi, history: History, planned: PlanningResult) -> None:
    history.plans.put(planned.plan)

    answer = asgi().get(f"/v1/plans/{planned.plan.plan_id}/timeline")
    assert answer.status_code == 404
    assert "is not kept" in answer.json()["problem"]


@pytest.mark.parametrize(
    ("content", "kind", "status", "problem"),
    [
        (b"no pickle", "application/octet-stream", 422, "not a pickle"),
        (b"cos\nsystem\n(S'true'\ntR.", "application/octet-stream", 422, "not plain data: it asks for os.system"),
        (b"x", "application/json", 415, "'application/json' is not read here"),
    ],
)
def test_what_is_no_snapshot_is_refused(asgi: Asgi, content: bytes, kind: str, status: int, problem: str) -> None:
    answer = asgi().post("/v1/replays", content=content, headers={"Content-Type": kind})

    assert answer.status_code == status
    assert answer.json()["problem"].startswith(problem)


def test_a_snapshot_that_unpacks_without_end_is_refused(asgi: Asgi) -> None:
    content = gzip.compress(bytes(100 * 2**20), 9)

    answer = asgi().post("/v1/replays", content=content, headers={"Content-Type": "application/octet-stream"})
    assert answer.status_code == 422
    assert answer.json()["problem"].endswith("bytes unpack to more than 64 MiB")


def test_jobs_are_listed_with_the_rank_that_took_the_most(asgi: Asgi, history: History, stored: Plan) -> None:
    history.jobs.bind("ray", "a", JobChange(plan_id=stored.plan_id))
    took = MeasuredRank(rank=0, device_bytes=700 * 2**20)
    history.jobs.bind("slurm", "b", JobChange(plan_id=stored.plan_id, measured=(took,)))

    found: list[dict[str, Any]] = asgi().get("/v1/jobs").json()["jobs"]
    assert [(each["system"], each["job_id"], each["measured_ranks"]) for each in found] == [
        ("slurm", "b", 1), ("ray", "a", 0),
    ]  # fmt: skip
    assert [(each["measured_bytes"], each["predicted_bytes"]) for each in found] == [
        (700 * 2**20, stored.rank_classes[0].peak.device_bytes), (None, None),
    ]  # fmt: skip
    assert asgi().get("/v1/jobs?plan_id=pl-other").json()["jobs"] == []
