"""A Ray of its own with a job server, and `ray job submit` to it as a person types it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from planner_serve import Processes

from planner.service.local_ray import free_ports, instance_folder

RAY = str(Path(sys.executable).with_name("ray"))
_AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}
_HEADERS = {"Authorization": f"Bearer {_AUTH['RAY_AUTH_TOKEN']}"}
START_SECONDS = 600.0


@dataclass(frozen=True)
class RayHead:
    """Where jobs are submitted."""

    address: str

    def submit(
        self, *arguments: str, folder: Path, entrypoint: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit` in that folder, with nothing of our own surroundings that planner or Ray would heed."""
        return subprocess.run(
            [RAY, "job", "submit", "--address", self.address, "--no-wait", *arguments, "--", *entrypoint],
            capture_output=True, text=True, timeout=600, cwd=folder,
            env={**_without(os.environ, "RAY_", "PLANNER_"), **_AUTH, **environment},
        )  # fmt: skip

    def jobs(self) -> dict[str, dict[str, Any]]:
        """What Ray knows of each job that was submitted, by its submission id."""
        said = httpx.get(f"{self.address}/api/jobs/", headers=_HEADERS, timeout=120).json()
        return {job["submission_id"]: job for job in said if job["submission_id"]}

    def log(self, submission_id: str) -> str:
        """What the job has printed so far."""
        answer = httpx.get(f"{self.address}/api/jobs/{submission_id}/logs", headers=_HEADERS, timeout=120)
        return str(answer.json()["logs"])


@contextmanager
def ray_head() -> Iterator[RayHead]:
    """In processes of a session of their own, which end with the block."""
    gcs, dashboard, client_port, agent, metrics = free_ports(5)
    with instance_folder() as folder:
        command = [
            RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}",
            f"--dashboard-port={dashboard}", f"--ray-client-server-port={client_port}",
            f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}",
            "--min-worker-port=30000", "--max-worker-port=30100", "--num-cpus=2", f"--temp-dir={folder}",
            "--object-store-memory=100000000", "--disable-usage-stats",
        ]  # fmt: skip
        log = folder / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, text=True, start_new_session=True,
                env={**_without(os.environ, "RAY_", "PLANNER_"), **_AUTH},
            )  # fmt: skip
        found = RayHead(f"http://127.0.0.1:{dashboard}")
        try:
            _wait_for_jobs(found, process, log)
            yield found
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
            # Only what was started here: Ray's processes stay in the session that was made for them.
            Processes(process).end()
            process.wait()


def _wait_for_jobs(head: RayHead, process: subprocess.Popen[str], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{head.address}/api/jobs/", headers=_HEADERS, timeout=60).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    pytest.fail(f"Ray does not start: {log.read_text(errors='replace')[-2000:]}")


def _without(environment: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}
