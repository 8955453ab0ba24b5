"""Searches over HTTP: asked for, followed while they run, ended, gone on with, refused in words that help."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest
from real_service import SearchesHere
from starlette.testclient import TestClient

from planner.job.bound.lower_bound import lower_bound
from planner.job.loading import load_document
from planner.job.schema import Job
from planner.planning.plan import plan_job
from planner.report.statement import Verdict
from planner.searching.exact_plans import Answer, Exact, Group
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.http.openapi import EXAMPLE_JOB
from planner.settings import Settings
from planner.units import MIB

DECODER = {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512}
JOB: dict[str, Any] = {
    "metadata": {"name": "searched"},
    "model": {"decoder": DECODER},
    "train": {"micro_batch_size": 4, "sequence_length": 64, "gradient_accumulation_steps": 2},
    "parallel": {"dp_replicate": 2},
    "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "H100-SXM-80GB"},
}
AXES = ["pp=1", "recompute=none,full", "micro_batch_size=1,2", "allocator=default"]


def bytes_of(job: Job) -> int:
    return lower_bound(job).least_bytes + job.train.micro_batch_size * MIB


class SupposedTracers:
    """Says of each candidate what is supposed, as soon as it is let."""

    def __init__(self) -> None:
        self.planned: list[Job] = []
        self.most = 1_000
        """Plans until it makes everybody wait."""
        self.cancelled = 0

    async def plan_group(self, group: Group) -> tuple[Answer, ...]:
        try:
            while len(self.planned) >= self.most:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.planned += group.jobs
        return tuple(map(exact, group.jobs))


def exact(job: Job) -> Exact:
    size, capacity = bytes_of(job), job.cluster.gpu.total_bytes
    return Exact(
        verdict=Verdict.FITS, device_bytes=size, allocated_bytes=size, headroom_bytes=capacity - size,
        capacity_bytes=capacity, rank_classes=1,
    )  # fmt: skip


@pytest.fixture
def tracers() -> SupposedTracers:
    return SupposedTracers()


@pytest.fixture
def searching(history: History, tracers: SupposedTracers) -> Iterator[Clients]:
    """Clients of the interface in this process, each with a runner of its own."""
    found = Clients(history, tracers)
    yield found
    for each in found.runners:
        each.close()
    for client in found.opened:
        client.__exit__(None, None, None)


class Clients:
    def __init__(self, history: History, tracers: SupposedTracers) -> None:
        self.history, self.tracers = history, tracers
        self.opened: list[TestClient] = []
        self.runners: list[SearchesHere] = []

    def __call__(self, **settings: Any) -> TestClient:
        known = Settings(**settings)
        self.runners.append(SearchesHere(self.history, known, self.tracers, workers=2))
        dependencies = Dependencies(
            settings=known, history=self.history, plan_provider=cast(Any, None), searches=self.runners[-1]
        )
        self.opened.append(TestClient(interface(dependencies), raise_server_exceptions=False).__enter__())
        return self.opened[-1]


def ask(client: Any, wait: int = 20, **more: Any) -> Any:
    return client.post("/v1/searches", json={"job": JOB, "axes": AXES, **more}, headers={"Prefer": f"wait={wait}"})


def eventually(client: Any, location: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    until = time.monotonic() + 300
    while not done(found := client.get(location).json()):
        assert time.monotonic() < until, found
        time.sleep(0.05)
    return found


def test_a_search_answers_the_best_of_all_candidates(searching: Any, tracers: SupposedTracers) -> None:
    answer = ask(searching(), objective="memory", top=2)

    assert answer.status_code == 200
    found = answer.json()
    assert (found["schema"], found["state"], found["complete"], found["problem"]) == (
        "planner.search/1", "done", True, None,
    )  # fmt: skip
    assert answer.headers["Location"] == f"/v1/searches/{found['search_id']}"
    best = sorted(bytes_of(job) for job in tracers.planned)
    assert [each["device_bytes"] for each in found["candidates"]] == best[:2]
    assert found["request"] == {"axes": AXES, "objective": "memory", "top": 2, "seconds": 120.0}
    assert found["progress"]["looked_at"] == found["progress"]["to_look_at"] == found["space"]["candidates"]


def test_what_is_known_by_now_is_told_while_it_runs(searching: Any, tracers: SupposedTracers) -> None:
    client, tracers.most = searching(), 3
    answer = ask(client, wait=0, top=8, objective="memory")
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "1")

    found = eventually(client, answer.headers["Location"], lambda each: each["space"]["planned"] >= 2)

    assert (found["state"], found["complete"], found["finished_at"]) == ("running", False, None)
    assert found["candidates"]
    assert found["progress"]["doing"].startswith(f"planned {found['progress']['planned']} of ")
    tracers.most = 1_000
    done = eventually(client, answer.headers["Location"], lambda each: each["state"] == "done")
    assert len(done["candidates"]) == 8


def test_a_cancelled_search_keeps_what_it_found_and_goes_on_from_there(
    searching: Any, tracers: SupposedTracers
) -> None:
    client, tracers.most = searching(), 3
    location = ask(client, wait=0, top=8, objective="memory").headers["Location"]
    eventually(client, location, lambda each: each["space"]["planned"] >= 2)

    ended = client.delete(location)

    assert (ended.status_code, ended.json()["state"], ended.json()["stopped"]) == (200, "stopped", "cancelled")
    assert ended.json()["candidates"]
    assert tracers.cancelled == 1
    before, tracers.most = len(tracers.planned), 1_000

    again = ask(client, top=8, objective="memory").json()

    assert (again["state"], again["search_id"]) == ("done", ended.json()["search_id"])
    planned = [json.dumps(each, default=str) for each in tracers.planned]
    assert len(set(planned)) == len(planned) > before  # nothing was planned twice
    whole = ask(client, top=9, objective="memory").json()
    assert again["candidates"] == whole["candidates"][:8]


def test_the_same_search_is_run_once_and_then_answered_from_the_history(
    searching: Any, tracers: SupposedTracers
) -> None:
    first = ask(searching(), objective="memory").json()
    before = len(tracers.planned)

    renamed = {**JOB, "metadata": {"name": "another"}}
    again = ask(searching(), objective="memory", job=renamed, seconds=7)

    assert (again.status_code, again.json()) == (200, first)
    assert len(tracers.planned) == before


def test_a_search_whose_time_is_over_says_so_and_has_what_was_found(searching: Any, tracers: SupposedTracers) -> None:
    client, tracers.most = searching(), 3
    found = ask(client, top=8, objective="memory", seconds=2).json()
    assert (found["state"], found["stopped"], found["complete"]) == ("stopped", "time", False)
    assert found["candidates"]
    assert found["space"]["undecided"] > 0


def test_what_a_service_that_ended_had_begun_goes_on_when_it_is_asked_for_and_what_waited_is_run(
    searching: Any, tracers: SupposedTracers
) -> None:
    tracers.most = 0
    first, last = searching(searches_at_once=1), searching(searches_at_once=1)
    begun = ask(first, wait=0, top=2, objective="memory").headers["Location"]
    eventually(first, begun, lambda each: each["state"] == "running")
    waiting = ask(first, wait=0, top=3, objective="memory").headers["Location"]

    searching.runners[0].close()
    left = eventually(last, begun, lambda each: each["state"] == "stopped")
    tracers.most = 1_000
    ask(last, top=1, objective="memory")  # its runner settles what the first has left

    assert left["stopped"] == "interrupted"
    assert eventually(last, waiting, lambda each: each["state"] == "done")["candidates"]
    assert ask(last, top=2, objective="memory").json()["complete"]


def test_a_search_that_is_deleted_at_one_service_is_run_by_none_on_its_database(
    searching: Any, tracers: SupposedTracers
) -> None:
    tracers.most = 0
    first, last = searching(searches_at_once=1), searching(searches_at_once=1)
    begun, taken, waiting = (ask(first, wait=0, top=top, objective="memory").headers["Location"] for top in (2, 3, 4))
    eventually(first, begun, lambda each: each["state"] == "running")
    ask(last, wait=0, top=1, objective="memory")  # its runner takes what waits: it runs one, and the other waits there
    eventually(last, taken, lambda each: each["state"] == "running")

    ended = [last.delete(begun).json(), first.delete(taken).json(), first.delete(waiting).json()]
    assert [(each["state"], each["stopped"]) for each in ended] == [("stopped", "cancelled")] * 3
    eventually(first, begun, lambda _: tracers.cancelled == 2)
    tracers.most = 1_000
    ask(last, top=5, objective="memory")  # behind the one that waited there

    left = [first.get(location).json() for location in (begun, taken, waiting)]
    assert [(each["state"], each["stopped"], each["space"]["planned"]) for each in left] == [
        ("stopped", "cancelled", 0), ("stopped", "cancelled", 0), ("stopped", "cancelled", 0),
    ]  # fmt: skip
    assert ask(last, top=4, objective="memory").json()["complete"]


def test_more_searches_than_may_wait_are_told_to_come_again(searching: Any, tracers: SupposedTracers) -> None:
    client, tracers.most = searching(searches_at_once=1, search_queue=1), 0
    answers = [ask(client, wait=0, top=top, objective="memory") for top in (1, 2, 3)]
    assert [each.status_code for each in answers] == [202, 202, 429]
    assert answers[2].json()["problem"] == "2 searches run or wait already"
    waited = client.delete(answers[1].headers["Location"]).json()
    assert (waited["state"], waited["stopped"]) == ("stopped", "cancelled")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no job": ({"gpus": 4}, "job: job is missing"),
    "an unknown key": ({"job": JOB, "objektive": "cost"}, "objektive: there is no key `objektive`"),
    "an unknown objective": ({"job": JOB, "objective": "speed"}, "objective: there is no objective 'speed'"),
    "an axis that is none": ({"job": JOB, "axes": ["recompote=none"]}, "there is no axis 'recompote'"),
    "an axis without values": ({"job": JOB, "axes": ["tp"]}, "'tp' is not axis=values"),
    "an axis twice": ({"job": JOB, "axes": ["tp=1", "tp=2"]}, "axes: tp is given twice"),
    "axes as a text": ({"job": JOB, "axes": "tp=1"}, "axes: axes is 'tp=1'"),
    "degrees that do not divide": ({"job": JOB, "gpus": 8, "axes": ["tp=3"]}, "no layout of 8 GPUs has tp 3"),
    "a GPU that is none": ({"job": JOB, "gpu": "H1000"}, "gpu: there is no GPU `H1000` in the catalog"),
    "a GPU twice": ({"job": JOB, "gpus": "8xH100", "gpu": "A100"}, "gpu: gpus names H100, and gpu A100"),
    "no number of GPUs": ({"job": JOB, "gpus": 0}, "gpus: '0' says no number of GPUs"),
    "GPUs as a list": ({"job": JOB, "gpus": [8]}, "gpus: gpus is a list"),
    "nothing to show": ({"job": JOB, "top": 0}, "top: top is 0"),
    "no time": ({"job": JOB, "seconds": 0}, "seconds: seconds is 0"),
    "more time than is allowed": ({"job": JOB, "seconds": 601}, "seconds: seconds is 601"),
    "a batch that is none": ({"job": JOB, "global_batch": -4}, "global_batch: global_batch is -4"),
    "a job that is none": ({"job": 7}, "job: the job is not an object"),
    "a config as an axis": ({"job": JOB, "axes": ["model.hf_config=null"]}, "there is no axis 'model.hf_config'"),
    "a config in a text": ({"job": JOB, "axes": ["model.hf_config=x"]}, "there is no axis 'model.hf_config'"),
    "code of users": (
        {"job": {**JOB, "model": {"factory": "shop.nets:build"}}},
        "model.factory: this service runs no code of its users",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused_at_once(searching: Any, case: str) -> None:
    body, said = REFUSED[case]
    answer = searching().post("/v1/searches", json=body)
    assert answer.status_code in (403, 422)
    assert answer.json()["detail"].splitlines()[0] == said


def test_an_objective_that_says_nothing_of_the_job_is_refused(searching: Any) -> None:
    job = {**JOB, "cluster": {**JOB["cluster"], "gpu": {"total_bytes": "40GiB", "arch": "sm_80"}}}
    answer = searching().post("/v1/searches", json={"job": job}).json()
    assert (answer["place"], answer["allowed"]) == ("objective", "memory, headroom")


def test_an_empty_space_names_the_rule_that_emptied_it(searching: Any) -> None:
    found = ask(searching(), axes=["tp=2", "sequence_length=63", "sequence_parallel=true"], objective="memory").json()
    assert (found["state"], found["candidates"]) == ("refused", [])
    assert "the document is 63, no multiple of tp(2): sequence parallelism" in found["problem"]["problem"]
    assert found["problem"]["remedy"].startswith("widen the axis that the rule names")


@pytest.mark.parametrize("method", ["get", "delete"])
def test_a_search_that_nobody_asked_for_is_not_found(searching: Any, method: str) -> None:
    client = searching()
    ask(client, objective="memory", top=1)
    answer = getattr(client, method)("/v1/searches/se-" + "a" * 26)
    assert (answer.status_code, answer.json()["remedy"]) == (404, "POST /v1/searches")


def test_a_search_needs_a_token_to_begin_and_to_end_where_writes_do(searching: Any) -> None:
    client = searching(token_sha256="0" * 64)
    assert ask(client).status_code == 401
    assert client.delete("/v1/searches/se-" + "a" * 26).status_code == 401


def test_on_a_cluster_the_workers_of_the_plans_find_what_planning_every_candidate_finds(
    client: httpx.Client,
) -> None:
    """Over Ray, with real plans."""
    body = {"job": EXAMPLE_JOB, "axes": ["micro_batch_size=1,2", "recompute=none,full"], "objective": "memory",
            "global_batch": 2, "top": 4}  # fmt: skip
    answer = client.post("/v1/searches", json=body, headers={"Prefer": "wait=55"})

    found = answer.json()
    assert (answer.status_code, found["state"]) == (200, "done"), found
    sizes = []
    for micro in (1, 2):
        for recompute in ("none", "full"):
            train = {**EXAMPLE_JOB["train"], "micro_batch_size": micro, "recompute": recompute,
                     "gradient_accumulation_steps": 2 // micro}  # fmt: skip
            plan = plan_job(load_document({**EXAMPLE_JOB, "train": train})).plan
            sizes.append(max(each.peak.device_bytes for each in plan.rank_classes))
    assert [each["device_bytes"] for each in found["candidates"]] == sorted(sizes)
    assert client.get(answer.headers["Location"]).json() == found
