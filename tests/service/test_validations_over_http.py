"""Validations from the request to the result, on CPU workers of a real Ray, as the service runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.service.http.openapi import EXAMPLE_JOB

SMALL: dict[str, Any] = {
    **EXAMPLE_JOB,
    "metadata": {"name": "small"},
    "model": {"decoder": {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 384, "vocab": 1000}},
    "train": {"micro_batch_size": 4, "sequence_length": 64, "iterations": 2},
}


def finished(client: httpx.Client, location: str) -> dict[str, Any]:
    until = time.monotonic() + 6000
    while True:
        found: dict[str, Any] = client.get(location).json()
        if found["state"] not in ("pending", "running"):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.25)


@dataclass(frozen=True)
class Measured:
    """A validation of the plan of one process: how it was answered, and what came out."""

    plan_id: str
    answer: httpx.Response
    done: dict[str, Any]


@pytest.fixture(scope="module")
def measured(service: Any) -> Measured:
    with httpx.Client(base_url=service.base_url, timeout=60) as client:
        plan_id = client.post("/v1/plans", json=SMALL).json()["plan_id"]
        answer = client.post("/v1/validations", json={"plan_id": plan_id, "device": "cpu"})
        assert answer.status_code == 202, answer.text
        return Measured(plan_id, answer, finished(client, answer.headers["Location"]))


def test_a_step_of_one_process_is_measured_beside_its_plan(measured: Measured) -> None:
    asked, done = measured.answer.json(), measured.done
    assert (asked["schema"], asked["state"], asked["plan_id"]) == (
        "planner.validation/1",
        "pending",
        measured.plan_id,
    )
    assert measured.answer.headers["Location"] == f"/v1/validations/{asked['validation_id']}"
    assert (done["state"], done["problem"]) == ("done", "")
    assert done["error_percent"] < 0.5
    assert (done["device"], done["gpu"], done["out_of_memory"]) == ("cpu", "cpu", False)
    (rank,) = done["result"]["ranks"]
    assert (done["result"]["error_of"], rank["peers"], rank["observation"]) == ("kept", "none", None)
    exact = {each["name"]: each["error_percent"] for each in rank["comparison"]["categories"]}
    assert exact == {"parameter": 0.0, "gradient": 0.0, "optimizer_state": 0.0}


def test_what_was_measured_is_listed(client: httpx.Client) -> None:
    refused = client.post("/v1/validations", json={"job": _on("B200-SXM-180GB")}).json()
    listed = client.get("/v1/validations", params={"state": "refused", "gpu": "B200-SXM-180GB"}).json()
    assert listed["schema"] == "planner.validations/1"
    assert [each["validation_id"] for each in listed["validations"]] == [refused["validation_id"]]
    assert "result" not in listed["validations"][0]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"plan_id": "pl-" + "a" * 26}, 404, "there is no plan 'pl-aaaaaaaaaaaaaaaaaaaaaaaaaa'"),
        ({"job": SMALL, "device": "tpu"}, 422, "'tpu' is not a device"),
        ({"job": []}, 422, "the job is not an object"),
        ({"job": {**SMALL, "model": {"factory": "os:getcwd"}}}, 403, "this service runs no code of its users"),
        ({"job": {**SMALL, "cluster": {"gpu": "H100-SXM-80GB", "nodes": 2}}}, 422, None),
    ],
)
def test_what_cannot_be_validated_is_said(
    body: dict[str, Any], status: int, problem: str | None, client: httpx.Client
) -> None:
    answer = client.post("/v1/validations", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert problem is None or answer.json()["problem"] == problem


def test_if_the_process_that_runs_validations_is_killed_they_have_failed_and_new_ones_are_taken(
    client: httpx.Client,
) -> None:
    from ray import serve

    runner = serve.get_deployment_handle("Validations", "planner").process.remote().result(timeout_s=30)
    location = client.post("/v1/validations", json={"job": SMALL, "device": "cpu"}).headers["Location"]
    until = time.monotonic() + 600
    while client.get(location).json()["state"] == "pending" and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(runner, signal.SIGKILL)

    failed = finished(client, location)
    assert (failed["state"], failed["problem"], failed["error_percent"]) == (
        "failed",
        "the process that ran it ended before it was done; ask again",
        None,
    )
    again = client.post("/v1/validations", json={"job": _on("L4-24GB")})
    assert (again.status_code, again.json()["state"]) == (202, "refused")
    until = time.monotonic() + 300
    while (left := _measuring_processes()) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []


def _measuring_processes() -> list[str]:
    """Children that workers of a Ray have started."""
    children = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_child = b"planner.runtime import child" in (process / "cmdline").read_bytes()
            if is_child and b"RAY_" in (process / "environ").read_bytes():
                children.append(process.name)
    return children


def _on(gpu: str) -> dict[str, Any]:
    return {**SMALL, "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": gpu}}
