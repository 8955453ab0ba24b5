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


DRY = [{"rank": 0, "out_of_memory": "the accelerator ran dry"}]
POD = '{"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}'


@pytest.mark.parametrize(
    ("told", "end"),
    [
        ({"failure": f"step 246\n{SLURM}\n"}, ("out_of_memory", "host", "host_limit")),
        ({"failure": POD}, ("out_of_memory", "host", "host_limit")),
        ({"failure": "exitCode: 137", "outcome": "failed"}, ("failed", "", "")),
        ({"failure": TORCH, "outcome": "failed"}, ("out_of_memory", "gpu", "other_process")),
        ({"failure": TORCH, "outcome": "finished"}, ("finished", "", "")),
        ({"ranks": [{"rank": 0, "out_of_memory": TORCH}]}, ("out_of_memory", "gpu", "other_process")),
        ({"ranks": DRY}, ("out_of_memory", "gpu", "unknown")),
    ],
    ids=["Slurm", "a pod", "an exit code proves nothing", "what Slurm calls failed", "it was caught", "the callback",
         "a form that is not known"],
)  # fmt: skip
def test_the_end_is_read_from_what_is_told(
    tell: Callable[..., dict[str, Any]], told: dict[str, Any], end: tuple[str, str, str]
) -> None:
    job = tell(**told)

    assert (job["outcome"], job["memory"], job["cause"]) == end


def test_the_end_stands_beside_the_plan_with_its_words(tell: Callable[..., dict[str, Any]]) -> None:
    job = tell(failure=TORCH)

    assert job["failure"] == TORCH
    assert any("other processes held 37.00 GiB" in each for each in job["beside_plan"])


def test_the_first_known_cause_stands(tell: Callable[..., dict[str, Any]]) -> None:
    tell(ranks=DRY)
    tell(failure=SLURM)

    assert tell(failure=TORCH)["cause"] == "host_limit"
