"""What the service did reaches Prometheus: a job planned, bound, checked, and the requests that asked for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from planner.service.http.openapi import EXAMPLE_JOB


def test_a_plan_and_its_job_reach_a_prometheus_that_scrapes_the_service(
    service: Any, client: httpx.Client, prometheus_server: Any, tmp_path: Path
) -> None:
    answer = client.post("/v1/plans", json=EXAMPLE_JOB)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    plan_id, first = plan["plan_id"], plan["rank_classes"][0]
    client.put("/v1/jobs/slurm/metrics-1", json={"plan_id": plan_id, "gpu_uuids": ["GPU-m"]}).raise_for_status()
    client.post("/v1/checks", json=EXAMPLE_JOB).raise_for_status()
    port = httpx.URL(service.base_url).port

    with prometheus_server.scraping(tmp_path, {"planner": port}) as prometheus:
        prometheus.waits_for('planner_requests_total{route="/v1/plans",method="POST",status="200"} > 0')
        prometheus.waits_for('sum(planner_trace_workers{state=~"busy|idle"}) == 2')
        prometheus.waits_for('planner_job_gpu_info{job_id="metrics-1",gpu_uuid="GPU-m"}')

        predicted = prometheus.figures(f'planner_predicted_device_bytes{{plan="{plan_id}"}}', "rank_class")
        assert predicted[(str(first["representative"]),)] == first["peak"]["device_bytes"]
        assert sum(prometheus.figures("planner_verdicts_total", "verdict").values()) >= 1
        assert sum(prometheus.figures("planner_jobs_traced_total").values()) >= 1
        assert prometheus.figures("planner_store_up") == {(): 1}
    client.put("/v1/jobs/slurm/metrics-1", json={"outcome": "finished"}).raise_for_status()


def test_capacity_knows_the_open_job(client: httpx.Client) -> None:
    plan = client.post("/v1/plans", json=EXAMPLE_JOB).json()
    before = client.get("/v1/capacity").json()["totals"]
    client.put("/v1/jobs/ray/metrics-2", json={"plan_id": plan["plan_id"]}).raise_for_status()
    after = client.get("/v1/capacity").json()["totals"]
    client.put("/v1/jobs/ray/metrics-2", json={"outcome": "finished"}).raise_for_status()

    assert after["jobs"] == before["jobs"] + 1
    assert after["requested_bytes"] > before["requested_bytes"]


def test_metrics_are_answered_while_plans_are_made(client: httpx.Client) -> None:
    began = time.monotonic()
    answer = client.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert time.monotonic() - began < 5
