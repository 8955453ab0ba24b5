"""The questions of capacity planning, answered over HTTP from stored plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from planner.job.loading import job_on_gpu, load_yaml
from planner.job.named_gpus import look_up
from planner.job.schema import Allocator, Cluster, Gpu
from planner.planning.plan import plan_from_traces, plan_job
from planner.planning.planned_classes import assign_ranks
from planner.planning.trace_source import TraceSource
from planner.report.statement import Plan, Verdict
from planner.service.history.capacity import capacity_on, verdict_on
from planner.service.history.job_table import JobChange, Outcome
from planner.service.history.store import History
from planner.truth.calibration.interval import Calibration
from planner.units import GIB

SMALL, LARGE = "A100-SXM-40GB", "H100-SXM-80GB"


def sized(plan: Plan, device: int) -> Plan:
    """The plan with one class, whose ranks take so much: all but a GiB of it allocated or outside."""
    (first,) = plan.rank_classes
    peak = replace(
        first.peak, device_bytes=device, reserved_bytes=device - GIB, allocated_bytes=device - 2 * GIB,
        interval_bytes=(device - GIB // 2, device + GIB // 2),
    )  # fmt: skip
    return replace(plan, rank_classes=(replace(first, peak=peak),))


def sharing(plan: Plan, **share: Any) -> Plan:
    """The plan of a job that gets so much of each of its GPUs."""
    gpu = {"name": LARGE, "total_bytes": look_up(LARGE).total_bytes}
    capacity = Cluster(gpu=Gpu(**gpu), **share).capacity_bytes
    classes = tuple(replace(each, capacity_bytes=capacity) for each in plan.rank_classes)
    return replace(plan, job={**plan.job, "cluster": {"gpu": gpu, **share}}, rank_classes=classes)


SHARING = """\
metadata: {name: sharing}
model: {decoder: {layers: 4, hidden: 1024, heads: 8, kv_heads: 8, ffn: 4096, vocab: 32000}}
train: {micro_batch_size: 8, sequence_length: 1024}
cluster: {nodes: 1, gpus_per_node: 1, gpu: A100-SXM-80GB}
"""
"""It takes about 11 GiB."""


@pytest.fixture
def jobs(history: History, plan: Callable[..., Plan], clock: Any) -> None:
    """Four that wait, of 8 or 4 ranks each: small, just too large, in between, and far too large for a small GPU."""
    sizes = {"a": 30 * GIB, "b": 41 * GIB, "c": 40 * GIB, "d": 70 * GIB}
    for number, (job_id, size) in enumerate(sizes.items(), 1):
        made = sized(plan(number, classes=("0-7",) if job_id in "ad" else ("0-3",), queue="train"), size)
        history.plans.put(made)
        history.jobs.bind("slurm", job_id, JobChange(plan_id=made.plan_id))
        clock.passes(seconds=1)


@pytest.mark.usefixtures("jobs")
def test_which_jobs_would_fit_on_another_gpu(client: TestClient) -> None:
    document = client.get("/v1/capacity", params={"on": [SMALL, LARGE]}).json()

    small, large = document["on"]
    assert [(each["job_id"], each["verdict"]) for each in small["listed"]] == [
        ("d", "exceeds"), ("b", "exceeds"), ("c", "tight"), ("a", "fits"),
    ]  # fmt: skip
    assert (small["jobs"], small["gpus"]) == (
        {"fits": 1, "tight": 1, "exceeds": 2}, {"fits": 8, "tight": 4, "exceeds": 12},
    )  # fmt: skip
    assert large["jobs"] == {"fits": 4, "tight": 0, "exceeds": 0}
    assert (small["total_bytes"], document["left_out"]) == (look_up(SMALL).total_bytes, 0)


@pytest.mark.usefixtures("jobs")
def test_of_last_months_jobs(client: TestClient, history: History) -> None:
    for job_id in "abcd":
        history.jobs.bind("slurm", job_id, JobChange(outcome=Outcome.FINISHED))

    def listed(**more: str) -> list[str]:
        document = client.get("/v1/capacity", params={"on": SMALL, **more}).json()
        return [each["job_id"] for each in document["on"][0]["listed"]]

    assert listed() == []
    assert listed(since="2026-01-01T00:00:00Z") == ["d", "b", "c", "a"]
    assert listed(since="2026-02-01T00:00:00Z") == []


@pytest.mark.usefixtures("jobs")
def test_how_many_gpus_of_which_kind_a_queue_needs(client: TestClient, history: History) -> None:
    history.jobs.bind("slurm", "c", JobChange(started_at=history._now()))  # it runs: it needs none any more

    needs = client.get("/v1/capacity", params={"on": [LARGE, SMALL]}).json()["needs"]
    only_small = client.get("/v1/capacity", params={"on": SMALL}).json()["needs"]

    assert needs == [
        {"queue": "train", "gpu": SMALL, "jobs": 1, "gpus": 8},
        {"queue": "train", "gpu": LARGE, "jobs": 2, "gpus": 12},
    ]
    assert only_small == [
        {"queue": "train", "gpu": "", "jobs": 2, "gpus": 12}, {"queue": "train", "gpu": SMALL, "jobs": 1, "gpus": 8},
    ]  # fmt: skip


SHARES = [
    {}, {"gpu_fraction": 0.25}, {"gpu_memory": 20 * GIB}, {"held_by_others_bytes": 30 * GIB},
    {"gpu_fraction": 0.5, "gpu_memory": 15 * GIB, "held_by_others_bytes": GIB},
]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "limit"), [*((share, "") for share in SHARES), ({}, "per_process_memory_fraction:0.3")], ids=str
)
def test_a_stored_job_may_use_of_another_gpu_what_its_plan_for_that_gpu_says(
    history: History, share: dict[str, Any], limit: str
) -> None:
    job = load_yaml(SHARING, "sharing")
    job = replace(job, allocator=Allocator(conf=limit), cluster=replace(job.cluster, **share))
    made, trace = plan_job(job, Calibration.none()).plan, TraceSource().trace_rank(job, 0)
    history.plans.put(made)
    history.jobs.bind("ray", "a", JobChange(plan_id=made.plan_id))
    (need,), _ = history.read_needs()

    for name in ("A100-SXM-40GB", "A100-PCIE-80GB"):
        there = plan_from_traces(
            job_on_gpu(job, name), assign_ranks(job_on_gpu(job, name), {0: trace}), Calibration.none()
        )
        assert capacity_on(need, look_up(name)) == there.plan.rank_classes[0].capacity_bytes
        assert verdict_on(need, look_up(name)) is there.plan.verdict


def test_a_share_counts_as_that_share_of_a_gpu(
    client: TestClient, history: History, plan: Callable[..., Plan], clock: Any
) -> None:
    for number, share in enumerate(({"gpu_fraction": 0.25}, {"gpu_memory": 20 * GIB}, {"gpu_fraction": 0.75}, {}), 1):
        made = sharing(sized(plan(number, classes=("0",), queue="train"), 18 * GIB), **share)
        history.plans.put(made)
        history.jobs.bind("slurm", str(number), JobChange(plan_id=made.plan_id))
        clock.passes(seconds=1)

    document = client.get("/v1/capacity", params={"on": [LARGE, "A100-SXM-40GB"]}).json()

    memory = 20 * GIB / look_up(LARGE).total_bytes
    assert [row["gpus"] for row in document["rows"]] == [pytest.approx(2 + memory, abs=0.001)]
    assert document["on"][0]["gpus"] == {"fits": pytest.approx(2 + memory, abs=0.001), "tight": 0, "exceeds": 0}
    half = 20 * GIB / look_up(SMALL).total_bytes
    assert document["on"][1]["gpus"] == {"fits": pytest.approx(1.75 + half, abs=0.001), "tight": 0, "exceeds": 0.25}


def test_what_others_hold_of_a_gpu_they_hold_of_another(history: History, plan: Callable[..., Plan]) -> None:
    history.plans.put(sized(plan(1, classes=("0",)), 38 * GIB))
    history.jobs.bind("ray", "a", JobChange(plan_id=plan(1).plan_id))
    (need,), _ = history.read_needs()
    held = replace(need, cluster=Cluster(held_by_others_bytes=5 * GIB))

    assert verdict_on(need, look_up(SMALL)) is Verdict.FITS
    assert verdict_on(held, look_up(SMALL)) is Verdict.EXCEEDS


@pytest.mark.parametrize("on", ["H100-SXM-8GB", [LARGE] * 17], ids=["unknown", "too many"])
def test_questions_that_cannot_be_answered(client: TestClient, on: str | list[str]) -> None:
    answer = client.get("/v1/capacity", params={"on": on})

    assert (answer.status_code, answer.json()["place"]) == (422, "query.on")
