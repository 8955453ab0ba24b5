"""Requests that take long, stop in the middle or come by the hundred: others are answered meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from planner.report.statement import Plan
from planner.runtime import running
from planner.service.history.store import History
from planner.service.http import bodies, body_readers, limits, operations, plans
from planner.service.http.dependencies import MOST_WAITING
from planner.service.http.openapi import EXAMPLE_JOB

Asgi = Callable[..., TestClient]
Story = Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]
PROBES = ("/livez", "/readyz", "/metrics")
MOST = 3
"""Requests that read, and requests that write, at once in these tests."""
MOST_ALLOWED = "3 of this kind (reads, timelines, writes) in each replica, of which one token may have 1 writes"


def run(app: Any, story: Story) -> None:
    async def with_client() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://planner") as client:
            await asyncio.wait_for(story(client), 300)

    asyncio.run(with_client())


class Held:
    """Plans that nobody gets before `go`."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.go = asyncio.Event()
        self.waiting = 0

    async def plan(self, job: Any, **asked: Any) -> Any:
        self.waiting += 1
        await self.go.wait()
        return await self._provider.plan(job, **asked)

    async def waited_for_by(self, count: int) -> None:
        while self.waiting < count:
            await asyncio.sleep(0.005)


@pytest.fixture
def held(plan_provider: Any, asgi: Asgi, monkeypatch: pytest.MonkeyPatch) -> tuple[Held, Any]:
    """Plans that are held back, and an interface to them with places for :data:`MOST`."""
    held = Held(type("Known", (), {"plan": plan_provider.plan}))
    monkeypatch.setattr(plan_provider, "plan", held.plan)
    return held, asgi(most_at_once=MOST).app


def test_probes_and_stored_plans_are_answered_while_writes_take_all_places(held: Any) -> None:
    waits, app = held

    async def story(client: httpx.AsyncClient) -> None:
        writers = [asyncio.create_task(client.post("/v1/plans", json=EXAMPLE_JOB)) for _ in range(MOST)]
        await waits.waited_for_by(MOST)
        refused = await client.post("/v1/plans", json=EXAMPLE_JOB)
        read = [await client.get(path) for path in (*PROBES, "/v1/plans")]
        waits.go.set()

        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert refused.json()["allowed"] == MOST_ALLOWED
        assert [answer.status_code for answer in read] == [200] * 4
        assert [answer.status_code for answer in await asyncio.gather(*writers)] == [200] * MOST

    run(app, story)


def test_one_token_does_not_get_all_places_for_writes(held: Any) -> None:
    waits, app = held

    async def story(client: httpx.AsyncClient) -> None:
        def plan(authorization: str) -> Any:
            return client.post("/v1/plans", json=EXAMPLE_JOB, headers={"Authorization": authorization})

        first = asyncio.create_task(plan("Bearer one"))
        await waits.waited_for_by(1)
        refused = [await plan(authorization) for authorization in ("Bearer one", "bearer   one ")]
        other = asyncio.create_task(plan("Bearer two"))
        await waits.waited_for_by(2)
        waits.go.set()

        assert [(answer.status_code, answer.json()["allowed"]) for answer in refused] == [(429, MOST_ALLOWED)] * 2
        assert [answer.status_code for answer in await asyncio.gather(first, other)] == [200, 200]
        assert (await plan("Bearer one")).status_code == 200

    run(app, story)


def test_probes_are_answered_while_every_thread_of_other_requests_hangs(asgi: Asgi) -> None:
    go = threading.Event()

    async def story(client: httpx.AsyncClient) -> None:
        hanging = [asyncio.create_task(asyncio.to_thread(go.wait)) for _ in range(64)]
        await asyncio.sleep(0)
        try:
            answers = [await client.get(path) for path in PROBES]
        finally:
            go.set()
        await asyncio.gather(*hanging)

        assert [answer.status_code for answer in answers] == [200] * 3

    run(asgi().app, story)


@pytest.mark.parametrize(("stale_seconds", "status"), [(15.0, 200), (-1.0, 503)], ids=["lately ready", "long ago"])
def test_a_look_that_takes_long_is_answered_by_what_was_found_lately_and_is_one_for_all(
    asgi: Asgi, monkeypatch: pytest.MonkeyPatch, stale_seconds: float, status: int
) -> None:
    monkeypatch.setattr(limits, "SOON_SECONDS", 0.01)
    monkeypatch.setattr(limits, "STALE_SECONDS", stale_seconds)
    monkeypatch.setattr(operations, "PROBE_SECONDS", 0.1)
    looks, answers = [], asyncio.Event()

    async def ready() -> None:
        looks.append(answers.is_set())
        await answers.wait()

    async def story(client: httpx.AsyncClient) -> None:
        answers.set()
        while (await client.get("/readyz")).status_code != 200 or not looks:
            pass
        answers.clear()
        looks.clear()

        asked = await asyncio.gather(*(client.get("/readyz") for _ in range(3)))

        assert ([answer.status_code for answer in asked], looks) == ([status] * 3, [False])
        while (await client.get("/readyz")).status_code == 200:  # until what that look finds is there
            await asyncio.sleep(0.01)

    run(asgi(tracers_ready=ready).app, story)


def test_a_probe_is_answered_while_scrapes_of_many_forms_wait(
    asgi: Asgi, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    figures = type(history.totals).figures

    def wait(totals: Any) -> Any:
        go.wait()
        return figures(totals)

    monkeypatch.setattr(type(history.totals), "figures", wait)

    async def story(client: httpx.AsyncClient) -> None:
        forms = [{"Accept": f"application/openmetrics-text; version={n}.0.0"} for n in range(8)]
        scrapes = [asyncio.create_task(client.get("/metrics", headers=form)) for form in forms]
        await asyncio.sleep(0.05)
        try:
            probe = await client.get("/readyz")
        finally:
            go.set()

        assert probe.status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*scrapes)} == {200}

    run(asgi().app, story)


def test_plans_are_read_while_many_writes_wait_for_the_database(
    asgi: Asgi, history: History, example_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    history.plans.put(example_plan)
    bind = type(history.jobs).bind

    def wait_and_bind(table: Any, *arguments: Any) -> Any:
        go.wait()
        return bind(table, *arguments)

    monkeypatch.setattr(type(history.jobs), "bind", wait_and_bind)

    async def story(client: httpx.AsyncClient) -> None:
        body = {"plan_id": example_plan.plan_id}
        writers = [asyncio.create_task(client.put(f"/v1/jobs/slurm/{n}", json=body)) for n in range(64)]
        await asyncio.sleep(0.2)
        try:
            read = await client.get(f"/v1/plans/{example_plan.plan_id}")
        finally:
            go.set()

        assert read.status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*writers)} == {200}

    run(asgi(most_at_once=100).app, story)


def test_metrics_that_many_ask_for_at_once_are_read_once(
    asgi: Asgi, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this history: a Prometheus of other tests may scrape an interface of this process, every second."""
    read, asked, all_asked = 0, 0, threading.Event()
    figures, call = type(history.totals).figures, operations._METRICS.call

    def read_when_all_asked(totals: Any) -> Any:
        nonlocal read
        if totals is history.totals:
            read += 1
            assert all_asked.wait(300)
        return figures(totals)

    async def count(*arguments: Any) -> Any:
        nonlocal asked
        asked += history in arguments
        if asked == 50:  # which waits for the reading, too, when the loop comes to its next piece of work
            asyncio.get_running_loop().call_soon(all_asked.set)
        return await call(*arguments)

    monkeypatch.setattr(type(history.totals), "figures", read_when_all_asked)
    monkeypatch.setattr(operations._METRICS, "call", count)

    async def story(client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(50)))
        assert [answer.status_code for answer in answers] == [200] * 50

    run(asgi(most_at_once=100).app, story)
    assert read == 1


def test_of_many_timelines_a_few_wait_and_the_others_are_told_to_come_again(
    asgi: Asgi, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, go = 0, 0, asyncio.Event()

    async def draw(*_: Any, **__: Any) -> dict[str, Any]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await go.wait()
        at_once -= 1
        return {}

    monkeypatch.setattr(plans, "_plan_and_trace", lambda *_: b"")
    monkeypatch.setattr(plans, "call_beside", draw)
    many = 3 * MOST_WAITING

    async def story(client: httpx.AsyncClient) -> None:
        path = f"/v1/plans/pl-{'a' * 26}/timeline"
        asked = [asyncio.create_task(client.get(path)) for _ in range(many)]
        while sum(each.done() for each in asked) < many - MOST_WAITING - 1:
            await asyncio.sleep(0.005)
        go.set()
        answers = await asyncio.gather(*asked)
        statuses = [answer.status_code for answer in answers]
        refused = next(answer for answer in answers if answer.status_code == 429)

        assert statuses.count(429) == many - MOST_WAITING - 1
        assert most == 1
        assert refused.json()["problem"] == "17 timelines and replays are being made or wait for it"
        assert refused.headers["Retry-After"] == "2"

    run(asgi(most_at_once=100).app, story)


def test_a_body_that_stops_gives_its_place_back(asgi: Asgi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "STALL_SECONDS", 0.1)
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": b"{" * 80_000, "more_body": True}])

    async def receive() -> dict[str, Any]:
        return next(parts, None) or await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"100000")]
    scope = {"type": "http", "method": "POST", "path": "/v1/plans", "headers": headers, "query_string": b""}
    asyncio.run(asyncio.wait_for(asgi().app(scope, receive, send), 300))

    assert (sent[0]["status"], json.loads(sent[1]["body"])["problem"]) == (408, "the body stopped for 0.1 s")


REPORT = {"ranks": [{"rank": 0, "out_of_memory": "CUDA out of memory. Tried to allocate " * 2000}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/jobs/slurm/7", json.dumps(REPORT)),
        ("PUT", "/v1/jobs/slurm/7", json.dumps({"outcome": "failed"})),
        ("POST", "/v1/plans", json.dumps(EXAMPLE_JOB)),
        ("POST", "/v1/checks", json.dumps(EXAMPLE_JOB)),
        ("POST", "/v1/searches", "[" * 16_000),
        ("POST", "/v1/validations", "[" * 16_000),
        ("POST", "/v1/specs", json.dumps({"model": "gpt2"})),
    ],
    ids=["large report", "small report", "job", "check", "search", "validation", "spec"],
)
def test_no_body_is_read_on_the_event_loop(
    asgi: Asgi, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: str
) -> None:
    """Of this process: bodies are read in others, which have the reader as it is."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it is read on the event loop")

    expected = asgi().request(method, path, content=body, headers={"Content-Type": "application/json"})
    monkeypatch.setattr(body_readers, "read_json", never)
    answer = asgi().request(method, path, content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.status_code < 500) == (expected.status_code, True)


def test_a_job_that_was_read_is_not_read_again(asgi: Asgi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks send one spec again and again, and each process that reads one takes 25 ms."""
    read: list[bytes] = []
    real = running.call

    def count(function: str, body: bytes, *arguments: Any, **named: Any) -> Any:
        read.append(body)
        return real(function, body, *arguments, **named)

    monkeypatch.setattr(running, "call", count)
    client, other = asgi(), {**EXAMPLE_JOB, "metadata": {"name": "other"}}
    answers = [client.post(path, json=job) for job in (EXAMPLE_JOB, other) for path in ("/v1/plans", "/v1/checks") * 2]

    assert {answer.status_code for answer in answers} == {200}
    assert [json.loads(body) for body in read] == [EXAMPLE_JOB, other]


def test_hundreds_of_small_bodies_are_read_in_turn_and_none_is_refused(
    asgi: Asgi, history: History, example_plan: Plan
) -> None:
    history.plans.put(example_plan)
    report = {"plan_id": example_plan.plan_id, "outcome": "failed"}

    async def story(client: httpx.AsyncClient) -> None:
        answers = await asyncio.gather(*(client.put(f"/v1/jobs/slurm/{n}", json=report) for n in range(100)))
        assert {answer.status_code for answer in answers} == {200}

    run(asgi(most_at_once=100).app, story)


def test_a_message_of_megabytes_is_refused_before_it_is_read(asgi: Asgi) -> None:
    message = "CUDA out of memory. Tried to allocate " * 100_000
    answer = asgi().put("/v1/jobs/slurm/7", json={"ranks": [{"rank": 0, "out_of_memory": message}]})

    assert (answer.status_code, answer.json()["place"]) == (422, "ranks[0].out_of_memory")
    assert answer.json()["allowed"] == "String should have at most 262144 characters"


def test_a_path_with_a_slash_too_many_sends_nobody_to_another_host(asgi: Asgi) -> None:
    answer = asgi().post("/v1/plans/", json=EXAMPLE_JOB, headers={"Host": "evil.example"}, follow_redirects=False)

    assert answer.status_code in (404, 405)
    assert "location" not in answer.headers
