"""Processes of a service are killed in the middle: whoever waits is answered or told to come again, and it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]
SLOW = {"layers": 24, "iterations": 30, "optimizer": {"name": "RAdam"}}
"""A job that is traced for some seconds: by an optimizer that counts its steps, so that no iteration is folded."""


def test_the_replica_that_answers_is_killed_in_the_middle(service: Any, new_job: NewJob) -> None:
    job = new_job(**SLOW)
    asked = service.begin(job)
    killed = service.processes.kill("ray::ServeReplica:planner:Planner")
    lost = asked.result()
    again = service.insist(job)

    assert lost.status_code in (200, 502, 503)
    assert lost.status_code == 200 or int(lost.headers["Retry-After"]) >= 1
    assert service.processes.wait_for("ray::ServeReplica:planner:Planner", besides=killed)
    assert again.status_code == 200
    assert again.json()["plan_id"] in service.stored()


def test_the_one_that_has_plans_made_is_killed_in_the_middle(service: Any, new_job: NewJob) -> None:
    job = new_job(**SLOW)
    asked = service.begin(job)
    orphans = service.processes.wait_for("ray::TracingWorker")
    killed = service.processes.kill("ray::ServeReplica:planner:Tracers")
    found = asked.result()

    assert (found.status_code, found.json().get("verdict")) == (200, "fits"), found.text
    assert found.json()["plan_id"] in service.stored()
    assert service.processes.wait_for("ray::ServeReplica:planner:Tracers", besides=killed)
    assert not set(orphans) & set(service.processes.named("ray::TracingWorker"))
    service.wait_until_ready()


def test_the_controller_is_killed_and_nobody_notices(service: Any, new_job: NewJob) -> None:
    known = new_job()
    before = service.insist(known)
    killed = service.processes.kill("ray::ServeController")
    while_away = [service.post(known) for _ in range(20)] + [service.post(new_job())]
    service.processes.wait_for("ray::ServeController", besides=killed)

    assert [each.status_code for each in while_away] == [200] * 21
    assert while_away[0].content == before.content

    # It controls again: it sees that the replica is not there any more.
    service.processes.kill("ray::ServeReplica:planner:Planner")
    assert service.insist(known).content == before.content


def test_the_proxy_is_killed_and_starts_again(service: Any, new_job: NewJob) -> None:
    known = new_job()
    before = service.insist(known)
    service.processes.kill("haproxy")
    while_away = [service.post(known) for _ in range(10)]

    assert {each.status_code for each in while_away} <= {200, 503}  # nobody is refused, or waits for long
    assert service.insist(known).content == before.content
