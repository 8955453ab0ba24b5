"""Jobs come over HTTP, plans go: the whole way, through Ray."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
from trainer_jobs import FLAGS, job_of

from planner.job.loading import bundle
from planner.service.http.openapi import EXAMPLE_JOB

COUNTING = {"name": "RAdam"}
"""An optimizer that counts its steps: every iteration is traced."""


def named(name: str, **train: Any) -> dict[str, Any]:
    """The small example under a name, and trained in another way if a test needs a job of its own."""
    return {**EXAMPLE_JOB, "metadata": {"name": name}, "train": {**EXAMPLE_JOB["train"], **train}}


def test_a_job_is_planned_once_and_then_answered_from_the_store(client: httpx.Client) -> None:
    first = client.post("/v1/plans", json=named("first", micro_batch_size=3))
    again = client.post("/v1/plans", json=named("first", micro_batch_size=3))

    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["schema"] == "planner.plan/2"
    assert [each.headers["X-Planner-Stored"] for each in (first, again)] == ["true", "true"]
    assert [each.headers["X-Planner-From-Store"] for each in (first, again)] == ["false", "true"]
    assert again.content == first.content
    assert client.get(first.headers["Location"]).content == first.content


def test_who_does_not_wait_is_told_and_finds_the_plan_later(client: httpx.Client) -> None:
    job = named("later", micro_batch_size=6, iterations=30, optimizer=COUNTING)
    answer = client.post("/v1/checks", json=job, headers={"Prefer": "wait=0"})
    assert (answer.status_code, answer.json()["verdict"]) == (202, "pending")

    until = time.monotonic() + 300
    while client.get(f"/v1/plans/{answer.json()['plan_id']}").status_code == 404:
        assert time.monotonic() < until
        time.sleep(0.1)
    again = client.post("/v1/checks", json=job)
    assert (again.status_code, again.json()["verdict"]) == (200, "fits")
    assert again.json()["plan_id"] == answer.json()["plan_id"]


def test_a_job_with_trainer_is_planned_checked_searched_and_kept_as_any_other(
    client: httpx.Client, tmp_path: Path
) -> None:
    job = {**bundle(job_of(tmp_path, arguments=FLAGS)), "metadata": {"name": "fine-tune"}}

    first, again = (client.post("/v1/plans", json=job, timeout=300) for _ in range(2))

    assert first.status_code == 200, first.text
    assert first.json()["verdict"] == "fits"
    assert first.json()["command"][-2:] == ["planner.programs.trainer", "job.json"]
    assert (again.headers["X-Planner-From-Store"], again.content) == ("true", first.content)
    renamed = client.post("/v1/plans", json={**job, "metadata": {"name": "renamed"}})
    assert (renamed.json()["plan_id"], renamed.json()["job"]["metadata"]["name"]) == (
        first.json()["plan_id"],
        "renamed",
    )
    check = client.post("/v1/checks", json=job).json()
    assert (check["verdict"], check["message"].partition(":")[0]) == ("fits", "fine-tune fits")
    drawn = client.get(f"/v1/plans/{first.json()['plan_id']}/timeline")
    assert (drawn.status_code, "is not kept" in drawn.json()["problem"]) == (404, True)
    asked = {"job": job, "axes": ["micro_batch_size=1,2", "recompute=none", "allocator=default"], "seconds": 600}
    search = client.post("/v1/searches", json=asked)
    assert search.status_code in (200, 202), search.text
    until = time.monotonic() + 600
    while (found := client.get(search.headers["Location"]).json())["state"] in ("pending", "running"):
        assert time.monotonic() < until
        time.sleep(0.5)
    assert [each["verdict"] for each in found["candidates"]] == ["fits", "fits"], found


def test_a_deadline_that_passes_is_504_and_frees_the_process(client: httpx.Client) -> None:
    job = named("slow", micro_batch_size=7, iterations=100, optimizer=COUNTING)
    late = client.post("/v1/plans", json=job, headers={"Prefer": "wait=0"})
    assert (late.status_code, late.json()["type"]) == (504, "urn:planner:problem:deadline")

    assert client.post("/v1/plans", json=named("next", micro_batch_size=8), timeout=300).status_code == 200


def test_a_request_keeps_its_id_once(client: httpx.Client) -> None:
    answer = client.get("/livez", headers={"X-Request-ID": "abc-1"})

    assert answer.headers.get_list("x-request-id") == ["abc-1"]


def test_the_description_is_there_for_people_and_programs(client: httpx.Client) -> None:
    assert "swagger" in client.get("/docs").text
    described = client.get("/openapi.json").json()
    assert {"/v1/plans", "/v1/checks", "/v1/jobs/{system}/{job_id}", "/livez", "/readyz"} <= described["paths"].keys()
    assert "429" in described["paths"]["/v1/plans"]["post"]["responses"]
