"""The disk of a service is filled, more is asked than it can do, its Ray dies: it says so, and goes on if it can."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hostile_bodies import COUNT, HostileRequest, hostile_requests
from machine_speed import slowness

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]
Eventually = Callable[..., Any]
WORKERS, QUEUE, TRACE_SECONDS = 2, 3, 20
DISK_BYTES = 16 * 2**20
MOST_SECONDS, MOST_GROWTH_BYTES = 2.0, 200 * 2**20
"""What an answer to a hostile body may take, and by how much all of them may make the service larger."""


@pytest.fixture(scope="module")
def service(planner_serve: Any, program: Callable[[str], str]) -> Iterator[Any]:
    """Its store lies on a disk of its own, which is small: /mnt is another folder for it than for us."""
    walls = program("bwrap"), "--dev-bind", "/", "/", "--size", str(DISK_BYTES), "--tmpfs", "/mnt", "--"
    limits = {"trace_workers": WORKERS, "trace_queue": QUEUE, "trace_seconds": TRACE_SECONDS}
    with planner_serve("sqlite:////mnt/planner.sqlite", *walls, **limits) as found:
        (one_inside,) = found.processes.named("gcs_server")
        found.inside = _into_namespaces_of(one_inside, program("nsenter"))
        yield found


def test_a_trace_that_would_take_an_hour_is_refused_and_the_next_is_made(service: Any, new_job: NewJob) -> None:
    service.wait_until_ready()
    began = time.monotonic()
    refused = service.post(new_job(48, iterations=100_000, eval={"every": 50_000}))
    seconds = time.monotonic() - began

    assert refused.status_code == 422
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "urn:planner:problem:tracelimit"
    assert f"not traced within {TRACE_SECONDS} s" in refused.json()["problem"]
    assert seconds >= TRACE_SECONDS
    assert service.post(new_job()).status_code == 200
    service.wait_until_idle()


def test_more_than_it_can_do_are_told_to_come_again_and_none_is_lost(service: Any, new_job: NewJob) -> None:
    service.wait_until_ready()
    jobs = [new_job(6) for _ in range(WORKERS + QUEUE + 7)]
    answers = service.all_at_once(jobs)
    statuses = [each.status_code for each in answers]
    away = [each for each in answers if each.status_code == 429]

    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= WORKERS + QUEUE
    assert all(1 <= int(each.headers["Retry-After"]) <= 60 for each in away)
    assert {each.json()["type"] for each in away} == {"urn:planner:problem:busy"}

    plans = {service.insist(each).json()["plan_id"] for each in jobs}
    assert len(plans) == len(jobs)
    assert plans <= service.stored()
    service.wait_until_idle()


def test_the_disk_is_full_for_a_while(service: Any, new_job: NewJob, eventually: Eventually) -> None:
    service.wait_until_ready()
    known, stored = new_job(), new_job()
    plan_id = service.post(known).json()["plan_id"]
    service.post(stored)
    eventually(lambda: plan_id in service.stored(), "not stored")
    before = service.stored()
    fill = "while True: file.write(bytes(4096))"
    command = [*service.inside, sys.executable, "-c", f"with open('/mnt/filler', 'wb', buffering=0) as file:\n {fill}"]
    filled = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    unstored = [service.post(new_job(3)) for _ in range(4)]
    from_store = service.post(known)
    eventually(lambda: service.readiness()[0] == 503, "it says that it is ready", 20)
    _, problem = service.readiness()

    assert "No space left" in filled.stderr
    assert "the history sqlite:////mnt/planner.sqlite cannot be used: its disk" in problem
    assert [each.status_code for each in unstored] == [200] * 4
    assert {each.headers["X-Planner-Stored"] for each in unstored} == {"false"}
    assert (from_store.status_code, from_store.headers["X-Planner-Stored"]) == (200, "true")
    lost = {each.json()["plan_id"] for each in unstored}
    assert lost - service.stored(), "the disk was not full"
    assert before <= service.stored()

    subprocess.run([*service.inside, "rm", "/mnt/filler"], timeout=60, check=True)
    service.wait_until_ready()
    again = new_job(3)
    made = service.post(again)
    assert made.json()["plan_id"] in service.stored()
    assert before <= service.stored()


def test_hostile_bodies_are_answered_soon_and_leave_no_trace(service: Any) -> None:
    service.wait_until_ready()
    slower = slowness(time.perf_counter)
    with httpx.Client(base_url=service.url, timeout=300) as client:
        for request in hostile_requests(100, seed=1):  # what is loaded with a first request is not a growth
            _ask(client, request)
        service.wait_until_idle()
        before = service.processes.resident_bytes()
        asked = [(request, *_ask(client, request)) for request in hostile_requests()]
        service.wait_until_idle()
        growth = service.processes.resident_bytes() - before
    print(f"longest {max(seconds for *_, seconds in asked):.2f} s, {growth / 2**20:.0f} MiB more")

    assert len(asked) == COUNT
    assert [(each.name, each.path, status) for each, status, _ in asked if status >= 500] == []
    assert [(each.name, each.path, seconds) for each, _, seconds in asked if seconds > slower * MOST_SECONDS] == []
    assert growth < MOST_GROWTH_BYTES


def _ask(client: httpx.Client, request: HostileRequest) -> tuple[int, float]:
    """The status, and the seconds of the quickest of a few attempts: the machine may be busy with something else."""
    best = float("inf")
    for _ in range(3):
        began = time.monotonic()
        answer = client.request(request.method, request.path, content=request.body, headers=request.headers)
        best = min(best, time.monotonic() - began)
        if best <= MOST_SECONDS:
            break
    return answer.status_code, best


def test_without_its_ray_it_ends_with_an_error_and_leaves_nothing(service: Any, eventually: Eventually) -> None:
    service.processes.kill("raylet")

    assert service.processes.main.wait(600) == 1
    eventually(lambda: not service.processes.commands(), f"left: {service.processes.commands()}", 30)
    assert "the Ray of this service has died: raylet" in "".join(service.log)


def _into_namespaces_of(process: int, nsenter: str) -> tuple[str, ...]:
    user = ["--user", "--preserve-credentials"] if _user(process) != _user("self") else []
    return nsenter, "--target", str(process), *user, "--mount", "--wd=/", "--"


def _user(process: object) -> str:
    return os.readlink(f"/proc/{process}/ns/user")
