"""Jobs that ended out of memory: the cause is read from what is told of the end, and set beside the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from torch_messages import alloc_conf

from planner.report.statement import Plan
from planner.service.history.store import History

SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed."
TORCH = alloc_conf(
    {"device": 0, "tried": "2.00 GiB", "total": "79.00 GiB", "free": "1.00 GiB", "this": "40.00 GiB",
     "others": [(9, "37.00 GiB")], "allocated": "39.00 GiB", "unallocated": "0 bytes"}
)  # fmt: skip
PATH = "/v1/jobs/slurm/4711"


@pytest.fixture
def tell(asgi: Callable[..., TestClient], history: History, example_plan: Plan) -> Callable[..., dict[str, Any]]:
    """Tells the service of a job, and asks what it knows of it then."""
    history.plans.put(example_plan)
    client = asgi()

    def put(**told: Any) -> dict[str, Any]:
        answer = client.put(PATH, json={"plan_id": example_plan.plan_id, **told})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = client.get(PATH).json()
        return found

    return put


def end_of(job: dict[str, Any]) -> tuple[str, str, str]:
    return job["outcome"], job["memory"], job["cause"]


def test_slurms_words_are_of_the_host(tell: Callable[..., dict[str, Any]]) -> None:
    assert end_of(tell(failure=f"step 246\n{SLURM}\n")) == ("out_of_memory", "host", "host_limit")


def test_a_pod_that_was_killed_is_told_by_its_status(tell: Callable[..., dict[str, Any]]) -> None:
    status = '{"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}'

    assert end_of(tell(failure=status)) == ("out_of_memory", "host", "host_limit")


def test_an_exit_code_alone_proves_nothing(tell: Callable[..., dict[str, Any]]) -> None:
    assert end_of(tell(failure="exitCode: 137", outcome="failed")) == ("failed", "", "")


def test_what_slurm_calls_failed_ran_out_if_torch_says_so(tell: Callable[..., dict[str, Any]]) -> None:
    job = tell(failure=TORCH, outcome="failed")

    assert end_of(job) == ("out_of_memory", "gpu", "other_process")
    assert job["failure"] == TORCH


def test_the_end_stands_beside_the_plan(tell: Callable[..., dict[str, Any]]) -> None:
    assert any("other processes held 37.00 GiB" in each for each in tell(failure=TORCH)["beside_plan"])


def test_an_error_that_the_job_caught_is_no_end(tell: Callable[..., dict[str, Any]]) -> None:
    assert end_of(tell(failure=TORCH, outcome="finished")) == ("finished", "", "")


def test_a_rank_of_the_callback_tells_its_message(tell: Callable[..., dict[str, Any]]) -> None:
    assert end_of(tell(ranks=[{"rank": 0, "out_of_memory": TORCH}])) == ("out_of_memory", "gpu", "other_process")


def test_a_message_in_a_form_that_is_not_known_is_said_to_be_unknown(tell: Callable[..., dict[str, Any]]) -> None:
    job = tell(ranks=[{"rank": 0, "out_of_memory": "the accelerator ran dry"}])

    assert end_of(job) == ("out_of_memory", "gpu", "unknown")


def test_the_first_known_cause_stands(tell: Callable[..., dict[str, Any]]) -> None:
    tell(ranks=[{"rank": 0, "out_of_memory": "the accelerator ran dry"}])
    tell(failure=SLURM)

    assert end_of(tell(failure=TORCH)) == ("out_of_memory", "host", "host_limit")
