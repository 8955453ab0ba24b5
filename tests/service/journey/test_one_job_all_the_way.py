"""One job from its submission to the answers of capacity planning, with every real part between; and one refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from dashboards import choices, fill_in, panel
from planner_serve import until

from planner.units import GIB

pytestmark = pytest.mark.cluster

SPEC = """\
metadata: {{name: {name}, team: nlp, queue: h100}}
model: {{decoder: {{layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn: 128, vocab: {vocab}}}}}
train: {{micro_batch_size: {batch}, sequence_length: {length}}}
cluster: {{nodes: 1, gpus_per_node: 1, gpu: H100-SXM-80GB}}
"""
TRAIN = Path(__file__).with_name("train.py")


def test_a_job_goes_all_the_way_and_one_that_does_not_fit_no_step(cluster: Any, tmp_path: Path) -> None:
    write_job(cluster, "small", vocab=256, batch=2, length=32)
    write_job(cluster, "large", vocab=131072, batch=6, length=8192)  # its lower bound fits, its plan does not
    reports, stop = tmp_path / "reports.jsonl", tmp_path / "stop"
    train = (sys.executable, "train.py")

    # Through the hook: one is planned, admitted, bound and runs; of the other nothing is submitted.
    refused = cluster.submit("large", *train, "large.yaml", str(stop), PLANNER_REPORT_FILE=str(tmp_path / "never"))
    admitted = cluster.submit("small", *train, "small.yaml", str(stop), PLANNER_REPORT_FILE=str(reports))
    assert refused.returncode == 3, refused.stderr
    assert "planner: refused: large does not fit: rank 0 needs" in refused.stderr
    assert admitted.returncode == 0, admitted.stderr
    assert "planner: small fits: rank 0 needs" in admitted.stderr
    bound = until(lambda: bound_job(cluster, "small"), "the job is not bound", 10)
    plan = cluster.service.get(f"/v1/plans/{bound['plan_id']}").json()
    (rank_class,) = plan["rank_classes"]
    assert cluster.ray.jobs()["small"]["metadata"]["planner.plan_id"] == plan["plan_id"]

    # It trains, and tells its peak.
    report = until(lambda: report_after(reports, steps=2), f"no report: {cluster.ray.log('small')}", 60)
    measured = report["ranks"][0]["device_bytes"]
    assert (report["system"], report["id"], report["plan_id"]) == ("ray", "small", plan["plan_id"])
    assert measured > 0

    # The page of the job shows what was measured beside what was predicted.
    peak = rank_class["peak"]
    shown = {
        "rank class 0: measured": measured,
        "rank class 0: predicted": peak["device_bytes"],
        "rank class 0: lowest": peak["interval_bytes"][0],
        "rank class 0: highest": peak["interval_bytes"][1],
        "may use": rank_class["capacity_bytes"],
    }
    cluster.prometheus.waits_for(f'job_rank_class:planner_memory_actual:bytes{{job_id="small"}} == {measured}', 20)
    assert on_the_page(cluster.prometheus, "Peak of each rank class") == shown
    assert on_the_page(cluster.prometheus, "Predicted over measured") == {"ratio": peak["device_bytes"] / measured}

    # The capacity answer counts it, once.
    row = {
        "team": "nlp", "queue": "h100", "gpu": "H100-SXM-80GB", "jobs": 1, "gpus": 1,
        "requested_bytes": rank_class["capacity_bytes"], "predicted_bytes": peak["device_bytes"],
        "headroom_bytes": rank_class["capacity_bytes"] - peak["device_bytes"], "measured_bytes": measured,
        "measured_gpus": 1, "predicted_of_measured_bytes": peak["device_bytes"], "judged": 0, "wrong_verdicts": 0,
        "said_fits_ran_out": 0, "said_exceeds_ran": 0, "ran_out_gpu": 0, "ran_out_host": 0,
        "host_requested_bytes": 0, "host_predicted_bytes": plan["host"]["nodes"][0]["peak"]["bytes"],
    }  # fmt: skip
    (told_row,) = cluster.service.get("/v1/capacity").json()["rows"]
    assert 0 <= told_row.pop("gpu_seconds") < 600  # of one GPU
    assert told_row == row
    told = cluster.command("capacity", "--server", cluster.service.url)
    assert told.stdout.splitlines()[1].split() == [
        "nlp", "h100", "H100-SXM-80GB", "1", "1", *sizes(row, "requested", "predicted", "headroom", "measured"),
        "(1", "of", "1)", "-", "-",
    ]  # fmt: skip

    # The metrics know that one was refused; nobody ever ran it.
    assert cluster.prometheus.figures("planner_verdicts_total", "verdict") == {
        ("fits",): 1,
        ("tight",): 0,
        ("exceeds",): 1,
    }
    assert set(cluster.prometheus.figures("planner_job_info", "job_id")) == {("small",)}
    assert set(cluster.ray.jobs()) == {"small"}
    assert cluster.service.get("/v1/jobs/ray/large").status_code == 404

    # It ends: its verdict was right, its GPU is free.
    stop.touch()
    until(lambda: cluster.ray.jobs()["small"]["status"] == "SUCCEEDED", cluster.ray.log("small"), 30)
    last = report_after(reports, steps=2)
    ended = bound_job(cluster, "small")
    assert (ended["outcome"], ended["measured"][0]["device_bytes"]) == ("finished", last["ranks"][0]["device_bytes"])
    totals = cluster.service.get("/v1/capacity").json()["totals"]
    assert (totals["jobs"], totals["judged"], totals["wrong_verdicts"]) == (0, 1, 0)
    cluster.prometheus.waits_for('absent(planner_job_info{job_id="small"})', 20)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["reports.jsonl", "stop"]


def write_job(cluster: Any, name: str, **sizes: int) -> None:
    (cluster.folder / f"{name}.yaml").write_text(SPEC.format(name=name, **sizes))
    shutil.copy(TRAIN, cluster.folder)


def bound_job(cluster: Any, name: str) -> Any:
    """What the service knows of the job; None if nothing was told."""
    answer: httpx.Response = cluster.service.get(f"/v1/jobs/ray/{name}")
    return answer.json() if answer.status_code == 200 else None


def report_after(reports: Path, steps: int) -> Any:
    """The last report of the callback, if it is of so many iterations."""
    lines = reports.read_text().splitlines() if reports.exists() else []
    last = json.loads(lines[-1]) if lines else None
    return last if last and last["ranks"][0]["steps"] >= steps else None


def on_the_page(prometheus: Any, title: str) -> dict[str, float]:
    """What a panel of the job's dashboard shows, by the names of its series."""
    chosen = choices(prometheus, "job", system="ray", job_id="small")
    shown: dict[str, float] = {}
    for target in panel("job", title)["targets"]:
        for labels, value in prometheus.figures(fill_in(target["expr"], chosen), "rank_class").items():
            shown[target["legendFormat"].replace("{{rank_class}}", labels[0])] = value
    return shown


def sizes(row: dict[str, Any], *names: str) -> list[str]:
    """As `planner capacity` writes them."""
    written: list[str] = []
    for name in names:
        count = row[f"{name}_bytes"]
        written += [f"{count / GIB:.2f}", "GiB"] if count >= GIB else [f"{count / 2**20:.2f}", "MiB"]
    return written
