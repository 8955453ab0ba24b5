"""A Prometheus of the machine's own binary, for as long as a test asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.service.local_ray import free_ports


def program(name: str) -> str:
    """The path of a program of this machine; in CI it has to be there, elsewhere the test is skipped without it."""
    found = shutil.which(name)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@dataclass(frozen=True)
class Prometheus:
    """Answers queries on what it scraped."""

    base_url: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.base_url}/api/v1/query", params={"query": query}, timeout=300)
        document = answer.json()
        assert document["status"] == "success", document
        found: list[dict[str, Any]] = document["data"]["result"]
        return found

    def figures(self, query: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The result by values of some labels, waited for: a scrape that took too long leaves a gap."""
        self.waits_for(query)
        return {
            tuple(each["metric"].get(label, "") for label in labels): float(each["value"][1])
            for each in self.ask(query)
        }

    def rules(self) -> list[dict[str, Any]]:
        """Every rule and how its last evaluation went."""
        document = httpx.get(f"{self.base_url}/api/v1/rules", timeout=300).json()
        return [rule for group in document["data"]["groups"] for rule in group["rules"]]

    def waits_for(self, query: str, seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not self.ask(query):
            assert time.monotonic() < deadline, f"{query} has no result; targets: {self._targets()}"
            time.sleep(0.2)

    def _targets(self) -> str:
        return httpx.get(f"{self.base_url}/api/v1/targets").text


@contextmanager
def scraping(folder: Path, targets: dict[str, int], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """A Prometheus that scrapes ports of this machine every second, and evaluates rules every half."""
    (port,) = free_ports(1)
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]} for name, target in targets.items()
    ]
    settings = folder / "prometheus.yml"
    interval = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"}
    configuration = {"global": interval, "scrape_configs": jobs, "rule_files": [str(path) for path in rules]}
    settings.write_text(json.dumps(configuration), encoding="utf-8")
    arguments = [
        f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program("prometheus"), *arguments], stdout=log, stderr=log)
    found = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(found, process, folder / "log")
        yield found
    finally:
        process.terminate()
        try:
            process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(prometheus: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{prometheus.base_url}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"Prometheus does not start: {log.read_text(errors='replace')}")
