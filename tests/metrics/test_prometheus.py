"""A real Prometheus scrapes the real interface beside two exporters of GPUs: the questions of the docs have answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scraped import exporting, serving

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.metrics import METRICS, REQUEST_SECONDS, REQUESTS, STORE_UP
from planner.units import GIB

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
QUESTIONS = re.findall(r"```promql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
PLAN, OTHER = f"pl-{1:026d}", f"pl-{2:026d}"

USED_MIB = {"GPU-a": 39 * 1024, "GPU-b": 39 * 1024, "GPU-c": 38 * 1024, "GPU-d": 37 * 1024, "GPU-z": 100}
EXPORTERS = "# TYPE DCGM_FI_DEV_FB_USED gauge\n# TYPE ray_node_gram_used gauge\n" + "".join(
    f'DCGM_FI_DEV_FB_USED{{gpu="{index}",UUID="{uuid}",device="nvidia{index}",modelName="H100",'
    f'Hostname="node-{1 + index // 2}"}} {mib}\n'
    f'ray_node_gram_used{{GpuIndex="{index}",GpuDeviceName="H100",GpuUuid="{uuid}"}} {mib}\n'
    for index, (uuid, mib) in enumerate(USED_MIB.items())
)
"""As dcgm-exporter and Ray tell them, labels and all: MiB. The last GPU has no job."""


@pytest.fixture(scope="module")
def prometheus(
    prometheus_server: Any, fill: Callable[[History], Counters], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Has scraped a filled history several times, while requests were counted."""
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        History.open(f"sqlite:///{folder}/history.db") as history,
        fill(history) as counters,
        serving(history, counters) as planner,
        exporting(EXPORTERS) as gpus,
        prometheus_server.scraping(folder, {"planner": planner, "gpus": gpus}) as found,
    ):
        found.waits_for("planner_build_info")
        counters.add(REQUESTS, {"route": "/v1/plans", "method": "POST", "status": "200"})
        counters.observe(REQUEST_SECONDS, {"route": "/v1/plans"}, 0.004)
        counters.flush()
        found.waits_for('planner_requests_total{route="/v1/plans"} == 2')
        found.waits_for("count_over_time(DCGM_FI_DEV_FB_USED[1m]) > 2")
        yield found


def test_it_takes_every_metric(prometheus: Any) -> None:
    silent = [
        each.name
        for each in (STORE_UP, *METRICS)
        if not prometheus.ask(f"{each.name}_count" if each.kind == "histogram" else each.name)
    ]

    assert silent == []
    assert prometheus.figures("up", "job") == {("planner",): 1, ("gpus",): 1}


def test_no_label_of_ours_collides_with_its_own(prometheus: Any) -> None:
    names = httpx.get(f"{prometheus.base_url}/api/v1/labels").json()["data"]

    assert [name for name in names if name.startswith("exported_")] == []
    assert {each["metric"]["job"] for each in prometheus.ask('{__name__=~"planner_.+"}')} == {"planner"}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda text: " ".join(text.split())[:60])
def test_every_question_of_the_docs_has_an_answer(prometheus: Any, question: str) -> None:
    assert prometheus.ask(question)


def question(words: str) -> str:
    (found,) = [each for each in QUESTIONS if words in each]
    return found


def test_only_what_does_not_fit_is_found_not_to_fit(prometheus: Any) -> None:
    found = prometheus.figures(question("> on (plan)"), "plan", "rank_class")

    assert set(found) == {(OTHER, "0"), (OTHER, "2")}


@pytest.mark.parametrize("exporter", ["DCGM_FI_DEV_FB_USED) *", "ray_node_gram_used) *"])
def test_predictions_join_with_what_exporters_measure(prometheus: Any, exporter: str) -> None:
    found = prometheus.figures(question(exporter), "gpu_uuid", "rank_class", "job_id", "host")

    assert found == {
        ("GPU-a", "0", "4711", "node-1"): GIB + 1, ("GPU-b", "0", "4711", "node-1"): GIB + 1,
        ("GPU-c", "2", "4711", "node-2"): GIB + 1, ("GPU-d", "2", "4711", "node-2"): 2 * GIB + 1,
    }  # fmt: skip


def test_a_gpu_of_a_host_leads_to_its_job(prometheus: Any) -> None:
    found = prometheus.figures(question("group_right (gpu)"), "host", "gpu", "system", "job_id", "rank_class")

    assert found == {
        ("node-1", "0", "slurm", "4711", "0"): 39 * 1024, ("node-1", "1", "slurm", "4711", "0"): 39 * 1024,
        ("node-2", "2", "slurm", "4711", "2"): 38 * 1024, ("node-2", "3", "slurm", "4711", "2"): 37 * 1024,
    }  # fmt: skip
