"""A real Prometheus under the rules that are deployed, fed by the real interface and by exporters of GPUs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_server
import pytest
from filled_history import count, fill_history
from scraped import exporting, serving

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.units import GIB, MIB

RULES = Path(__file__).parents[3] / "deploy" / "prometheus"
DCGM_BYTES = {"GPU-a": 41 * GIB, "GPU-b": 39 * GIB, "GPU-z": 100 * MIB}
RAY_BYTES = {"GPU-a": 1 * GIB, "GPU-c": 38 * GIB, "GPU-d": 37 * GIB}


def exported() -> str:
    """As dcgm-exporter and Ray tell GPUs: MiB. GPU-a is told by both, GPU-z has no job."""
    lines = ["# TYPE DCGM_FI_DEV_FB_USED gauge", "# TYPE ray_node_gram_used gauge"]
    lines += [
        f'DCGM_FI_DEV_FB_USED{{gpu="{index}",UUID="{uuid}",modelName="H100",Hostname="node-1"}} {used // MIB}'
        for index, (uuid, used) in enumerate(DCGM_BYTES.items())
    ]
    lines += [
        f'ray_node_gram_used{{GpuIndex="{index}",GpuDeviceName="H100",GpuUuid="{uuid}"}} {used // MIB}'
        for index, (uuid, used) in enumerate(RAY_BYTES.items())
    ]
    lines += [
        "# TYPE node_memory_MemTotal_bytes gauge", f"node_memory_MemTotal_bytes {512 * GIB}",
        "# TYPE node_memory_MemAvailable_bytes gauge", f"node_memory_MemAvailable_bytes {112 * GIB}",
        "# TYPE node_uname_info gauge", 'node_uname_info{nodename="node-1",sysname="Linux"} 1',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Has scraped for some seconds, while requests were counted, and every rule was evaluated since."""
    folder = tmp_path_factory.mktemp("monitoring")
    rules = [RULES / "recording.rules.yml", RULES / "alerts.rules.yml"]
    with (
        History.open(f"sqlite:///{folder}/history.db") as history,
        fill_history(history) as counters,
        being_asked(counters),
        serving(history, counters) as planner,
        exporting(exported()) as gpus,
        prometheus_server.scraping(folder, {"planner": planner, "gpus": gpus}, rules) as found,
    ):
        found.waits_for("planner:requests_shed:ratio_rate5m")
        found.waits_for("job_gpu:planner_predicted_over_actual:ratio")
        found.waits_for("gpu:planner_interval_coverage:ratio")
        yield found


@contextmanager
def being_asked(counters: Counters) -> Iterator[None]:
    """Requests are counted all the time, or there is no rate to tell."""
    enough = threading.Event()

    def ask() -> None:
        while not enough.wait(0.3):
            count(counters)
            counters.flush()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        enough.set()
        asking.join()
