"""The history of a service lies in PostgreSQL, which stops and comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]


def test_postgresql_stops_and_comes_back(service: Any, postgresql: Any, new_job: NewJob) -> None:
    known, while_away = new_job(), [new_job(), new_job()]
    before = service.post(known)
    binding = {"plan_id": before.json()["plan_id"], "team": "nlp"}
    postgresql.stop()
    try:
        status, problem = service.readiness()
        from_cache = service.post(known)
        by_id = service.get(f"/v1/plans/{before.json()['plan_id']}")
        unknown = service.get("/v1/plans/pl-" + "a" * 26)
        listed = service.get("/v1/plans")
        capacity = service.get("/v1/capacity")
        bound = service.put("/v1/jobs/slurm/7", binding)
        metrics = service.get("/metrics")
        made = [service.post(each) for each in while_away]
        check = service.post(known, "/v1/checks")
        alive = service.get("/livez")
    finally:
        postgresql.start()

    assert status == 503
    assert "the history postgresql" in problem
    assert "cannot be used" in problem
    assert alive.status_code == 200
    assert (from_cache.status_code, from_cache.content) == (200, before.content)
    assert [each.status_code for each in made] == [200, 200]
    assert {each.headers["X-Planner-Stored"] for each in made} == {"false"}
    assert (check.status_code, check.json()["verdict"]) == (200, "fits")
    assert (metrics.status_code, "planner_store_up 0.0" in metrics.text) == (200, True)
    for refused in (unknown, listed, capacity, bound):
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        assert refused.headers["Content-Type"] == "application/problem+json"
    assert (by_id.status_code, by_id.content) in ((200, before.content), (503, by_id.content))

    service.wait_until_ready()
    after = service.post(new_job())
    assert after.status_code == 200
    assert {before.json()["plan_id"], after.json()["plan_id"]} <= service.stored()
    assert service.put("/v1/jobs/slurm/7", binding).status_code == 200
    # Plans that could not be stored are made again, and stored: nobody was told that they were.
    again = service.post(while_away[0])
    assert {key: value for key, value in again.json().items() if key != "seconds"} == {
        key: value for key, value in made[0].json().items() if key != "seconds"
    }
    assert again.json()["plan_id"] in service.stored()
