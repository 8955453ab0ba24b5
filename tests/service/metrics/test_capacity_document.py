"""`GET /v1/capacity` and `GET /metrics` as clients see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from planner.report.statement import Plan
from planner.service.history.job_table import JobChange, Outcome
from planner.service.history.store import History
from planner.units import GIB


def test_capacity_by_team_queue_and_gpu_and_in_all(
    client: TestClient, history: History, fill: Callable[[History], Any], plan: Callable[..., Plan]
) -> None:
    fill(history)
    other = plan(3, team="vision", classes=("0",))
    history.plans.put(other)
    history.jobs.bind("ray", "b", JobChange(plan_id=other.plan_id))

    document = client.get("/v1/capacity").json()

    nlp = {
        "team": "nlp", "queue": "q", "gpu": "H100-SXM-80GB", "jobs": 1, "gpus": 4, "requested_bytes": 320 * GIB,
        "predicted_bytes": 158 * GIB + 4, "headroom_bytes": 162 * GIB - 4, "measured_bytes": 77 * GIB,
        "measured_gpus": 2, "predicted_of_measured_bytes": 79 * GIB + 2, "judged": 1, "wrong_verdicts": 1,
        "said_fits_ran_out": 1, "said_exceeds_ran": 0, "ran_out_gpu": 1, "ran_out_host": 0,
        "host_requested_bytes": 2 * 400 * GIB, "host_predicted_bytes": 2 * 300 * GIB, "gpu_seconds": 0,
    }  # fmt: skip
    vision = {
        **dict.fromkeys(nlp, 0), "team": "vision", "queue": "q", "gpu": "H100-SXM-80GB", "jobs": 1, "gpus": 1,
        "requested_bytes": 80 * GIB, "predicted_bytes": 40 * GIB + 3, "headroom_bytes": 40 * GIB - 3,
        "host_requested_bytes": 2 * 400 * GIB, "host_predicted_bytes": 2 * 300 * GIB,
    }  # fmt: skip
    counted = nlp.keys() - {"team", "queue", "gpu"}
    assert document == {
        "schema": "planner.capacity/1",
        "rows": [nlp, vision],
        "totals": {name: nlp[name] + vision[name] for name in counted},  # type: ignore[operator]
    }


def test_verdicts_of_jobs_that_ended_before_are_left_out(
    client: TestClient, history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    history.plans.put(plan())
    for job in ("a", "b"):
        outcome = JobChange(plan_id=plan().plan_id, outcome=Outcome.OUT_OF_MEMORY, ended_at=clock.now)
        history.jobs.bind("ray", job, outcome)
        clock.passes(days=2)

    everything = client.get("/v1/capacity").json()
    later = client.get("/v1/capacity", params={"since": "2026-02-01T00:00:00+00:00"}).json()

    assert (everything["totals"]["judged"], later["totals"]["judged"]) == (2, 1)
    assert later["since"] == "2026-02-01T00:00:00Z"


@pytest.mark.parametrize("since", ["yesterday", "2026-02-01", "2026-02-01T00:00:00", "9" * 400, "\x00"])
def test_a_moment_that_is_none_is_said_to_be_wrong(client: TestClient, since: str) -> None:
    answer = client.get("/v1/capacity", params={"since": since})

    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["place"] == "query.since"
