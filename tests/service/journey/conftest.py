"""All that one job meets, for real: the service, a Ray that runs jobs, a Prometheus under the deployed rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_server
import pytest
from planner_serve import Service, serving
from ray_head import RayHead, ray_head

RULES = Path(__file__).parents[3] / "deploy" / "prometheus"
TOKEN = "a-token-of-this-test"


@dataclass(frozen=True)
class Cluster:
    """A cluster in which jobs are checked before they run."""

    service: Service
    ray: RayHead
    prometheus: Any
    folder: Path
    """Where jobs are submitted from; their working directory."""

    def submit(self, name: str, *entrypoint: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`ray job submit` of the spec NAME.yaml, under the submission id NAME, through the hook of this site."""
        told = {"PLANNER_SERVER": self.service.url, "PLANNER_TOKEN": TOKEN}
        site = {
            "RAY_JOB_SUBMIT_HOOK": "planner.admission.ray_jobs:check",
            "PLANNER_ADMISSION_REFUSE_UNCALIBRATED": "yes",
            "PLANNER_ADMISSION_UNREACHABLE": "refuse",
            "PLANNER_ADMISSION_PENDING": "refuse",
            "PLANNER_ADMISSION_WAIT_SECONDS": "30",
            "PLANNER_ADMISSION_TIMEOUT_SECONDS": "20",
        }
        return self.ray.submit(
            "--submission-id", name, "--metadata-json", json.dumps({"planner.job": f"{name}.yaml"}),
            "--working-dir", str(self.folder), "--runtime-env-json", json.dumps({"env_vars": {**told, **environment}}),
            folder=self.folder, entrypoint=entrypoint, environment={**told, **site},
        )  # fmt: skip

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`planner` with these arguments, as a person runs it."""
        return subprocess.run(
            [sys.executable, "-m", "planner", *arguments], capture_output=True, text=True, timeout=300, check=False
        )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("journey")
    (jobs := folder / "jobs").mkdir()
    rules = [RULES / "recording.rules.yml", RULES / "alerts.rules.yml"]
    with ExitStack() as stack, ThreadPoolExecutor(1) as beside:
        # Both take ten seconds to start, most of which they wait.
        service_of_its_own = serving(f"sqlite:///{folder / 'planner.sqlite'}", trace_workers=1, token=TOKEN)
        started = beside.submit(stack.enter_context, service_of_its_own)
        ray = stack.enter_context(ray_head())
        service = started.result()
        targets = {"planner": int(service.url.rpartition(":")[2])}
        prometheus = stack.enter_context(prometheus_server.scraping(folder, targets, rules))
        yield Cluster(service, ray, prometheus, jobs)
