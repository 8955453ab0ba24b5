"""What a workload says, what goes back into it, and keys that wait for a worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from planner.admission.decision import Decision, decide_without_verdict
from planner.admission.kueue import WorkQueue
from planner.admission.kueue_workloads import (
    Owner,
    Workload,
    active_condition,
    gpu_of_flavor,
    message_of,
    smallest_gpu,
)
from planner.admission.policy import Action

NOW = "2026-01-31T12:00:00Z"
PLAN = "pl-" + "a" * 26
FITS = Decision(action=Action.ADMIT, reason="it fits", plan_id=PLAN, verdict="fits")


def workload(*checks: dict[str, Any], reserved: str = "True", **metadata: Any) -> Workload:
    container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    named = {"metadata": {"annotations": {"planner.dev/plan-id": "of the user's own"}}}
    return Workload(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {
                "name": "job-sft-1",
                "namespace": "nlp",
                "uid": "w-1",
                "resourceVersion": "41",
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": "sft", "uid": "j-1", "controller": True}
                ],
                **metadata,
            },
            "spec": {
                "queueName": "h100",
                "podSets": [
                    {"name": "main", "count": 2, "template": {"spec": {"containers": [container]}}},
                    {"name": "logs", "count": 1, "template": named},
                ],
            },
            "status": {
                "admission": {
                    "clusterQueue": "cq",
                    "podSetAssignments": [
                        {"name": "main", "count": 2, "flavors": {"cpu": "any", "nvidia.com/gpu": "h100"}},
                        {"name": "logs", "count": 1, "flavors": {"cpu": "any"}},
                    ],
                },
                "conditions": [
                    {
                        "type": "QuotaReserved",
                        "status": reserved,
                        "reason": "QuotaReserved",
                        "message": "Quota reserved in ClusterQueue cq",
                        "lastTransitionTime": NOW,
                    }
                ],
                "admissionChecks": list(checks),
            },
        }
    )


def check(name: str = "fits", state: str = "Pending", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "message": "", "lastTransitionTime": NOW, **more}


def test_what_a_workload_says() -> None:
    found = workload(check())

    assert found.owner == Owner(api_version="batch/v1", kind="Job", name="sft", uid="j-1")
    assert (found.queue, found.reservation, found.gpu_flavors) == ("h100", NOW, ("h100",))
    assert [(pods.count, pods.gpus) for pods in found.asked.pods] == [(2, 8), (1, 0)]


def test_it_waits_for_our_checks_while_its_quota_is_reserved() -> None:
    both = workload(check("fits"), check("budget"), check("also-fits"), check("old-fits", "Ready"))

    assert both.waits_for({"fits", "also-fits", "old-fits"}) == ["fits", "also-fits"]
    assert both.waits_for(set()) == []
    assert workload(check(), reserved="False").waits_for({"fits"}) == []
    assert workload(check(), deletionTimestamp=NOW).waits_for({"fits"}) == []


def test_the_answer_is_of_this_state_and_leaves_out_what_is_not_ours() -> None:
    asked = workload(check("fits", retryCount=1), check("budget"), check("old", "Retry", retryCount=2))

    assert asked.write_answers({"fits", "old"}, FITS, ["planned on H100-SXM-80GB"], "later", "j-1") == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "job-sft-1", "namespace": "nlp", "uid": "w-1", "resourceVersion": "41"},
        "status": {
            "admissionChecks": [
                {
                    "name": "fits",
                    "state": "Ready",
                    "message": "planner: it fits\nplanner: planned on H100-SXM-80GB",
                    "lastTransitionTime": "later",
                    "podSetUpdates": [
                        {"name": "main", "annotations": {"planner.dev/plan-id": PLAN, "planner.dev/job-id": "j-1"}},
                        {"name": "logs", "annotations": {"planner.dev/job-id": "j-1"}},
                    ],
                },
                {"name": "old", "state": "Retry", "message": "", "lastTransitionTime": NOW},
            ]
        },
    }


@pytest.mark.parametrize(
    ("action", "state"),
    [(Action.ADMIT, "Ready"), (Action.WARN, "Ready"), (Action.HOLD, "Retry"), (Action.REFUSE, "Rejected")],
)
def test_each_decision_is_a_state(action: Action, state: str) -> None:
    decision = Decision(action=action, reason="so", plan_id=PLAN)

    (found,) = workload(check()).write_answers({"fits"}, decision, [], NOW, "j-1")["status"]["admissionChecks"]

    assert (found["state"], "podSetUpdates" in found) == (state, state == "Ready")


@pytest.mark.parametrize(("retries", "seconds"), [(None, 30), (0, 30), (1, 60), (4, 480), (5, 900), (15, 900)])
def test_who_is_held_again_waits_longer_up_to_a_quarter_of_an_hour(retries: int | None, seconds: int) -> None:
    held = decide_without_verdict("pending", Action.HOLD, "the plan is not ready after 60 s")
    asked = workload(check(retryCount=retries))

    (found,) = asked.write_answers({"fits"}, held, [], NOW, "j-1")["status"]["admissionChecks"]

    assert found["requeueAfterSeconds"] == seconds
    assert found["message"] == "planner: not yet: the plan is not ready after 60 s; Kueue asks again by itself"


def test_a_message_is_not_longer_than_kueue_takes() -> None:
    assert len(message_of(Decision(action=Action.WARN, reason="x" * 50_000), [])) < 32_768


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/a100", "nvidia.com/gpu-v100", "nvidia.com/mig-1g.10gb"]
)
def test_the_flavor_of_any_resource_that_is_a_gpu_is_that_of_the_gpus(resource: str) -> None:
    assigned = {"name": "main", "count": 1, "flavors": {"cpu": "any", resource: "of the GPUs"}}
    document = {"status": {"admission": {"podSetAssignments": [assigned]}}}

    assert Workload(document).gpu_flavors == ("of the GPUs",)


@pytest.mark.parametrize(
    ("flavor", "gpu"),
    [
        ({"spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}}, "H100-SXM-80GB"),
        ({"spec": {"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}}}, ""),
        ({"metadata": {"annotations": {"planner.dev/gpu": "a100-sxm-40gb"}}}, "A100-SXM-40GB"),
        ({"metadata": {"annotations": {"planner.dev/gpu": "none of them"}}}, ""),
        ({}, ""),
        ({"spec": None, "metadata": 3}, ""),
    ],
)
def test_a_flavors_gpu_is_what_its_nodes_are_labelled_with(flavor: dict[str, Any], gpu: str) -> None:
    assert gpu_of_flavor(flavor) == gpu


def test_of_several_flavors_the_smallest_gpu_decides() -> None:
    gpus = {"a": "H200-SXM-141GB", "b": "A100-SXM-40GB", "c": ""}

    assert smallest_gpu(("a", "b", "c"), gpus.__getitem__) == (
        "A100-SXM-40GB",
        ["planned on A100-SXM-40GB, the GPU of flavor b", "flavor c has no GPU that planner knows"],
    )
    assert smallest_gpu(("c",), gpus.__getitem__) == (
        "",
        ["flavor c has no GPU that planner knows: planned as the spec says"],
    )
    assert smallest_gpu((), gpus.__getitem__) == ("", [])


def test_an_admission_check_is_active_for_its_own_generation() -> None:
    wanted = active_condition({"metadata": {"name": "fits", "generation": 2}}, NOW)

    assert wanted == {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "observedGeneration": 2,
        "message": "planner answers for this check",
        "lastTransitionTime": NOW,
    }
    there = {"metadata": {"generation": 2}, "status": {"conditions": [wanted]}}
    assert active_condition(there, "later") is None
    newer = {"metadata": {"generation": 3}, "status": {"conditions": [wanted]}}
    assert active_condition(newer, "later") == {**wanted, "observedGeneration": 3}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_done_once_however_often_it_was_added() -> None:
    queue = WorkQueue(Clock())
    for _ in range(3):
        queue.add("a")

    assert (queue.take(wait=False), queue.take(wait=False)) == ("a", None)


def test_a_key_that_is_being_done_waits_for_its_worker() -> None:
    queue = WorkQueue(Clock())
    queue.add("a")
    assert queue.take(wait=False) == "a"
    queue.add("a")

    assert queue.take(wait=False) is None
    queue.done("a")
    assert queue.take(wait=False) == "a"


def test_a_key_is_done_at_its_time_and_the_earliest_one_counts() -> None:
    clock = Clock()
    queue = WorkQueue(clock)
    queue.add("a", 10)
    queue.add("b", 5)
    queue.add("a", 1)
    queue.add("a", 7)

    found = []
    for clock.now in (0.5, 1, 5, 10, 20):
        found.append(queue.take(wait=False))

    assert found == [None, "a", "b", None, None]


def test_an_end_wakes_those_who_wait() -> None:
    queue = WorkQueue()
    ended: list[str | None] = []
    waiting = threading.Thread(target=lambda: ended.append(queue.take()))
    waiting.start()
    queue.close()
    waiting.join()

    assert ended == [None]
