"""A service that is attacked from all sides answers probes, metrics and stored plans meanwhile, and then everything."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from machine_speed import slowness
from soak import share

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]
ATTACKER = Path(__file__).parents[2] / "fakes" / "attacker.py"
SECONDS = share(120, in_ci=12)
MOST_SECONDS = 1.0
"""What the median answer may take meanwhile, on a machine that has nothing else to do; an attacker has its processors
as well as the service."""
MOST_REFUSED = 0.05
"""Of the answers of each path: a probe that gets no processor for three seconds says so. On a slower machine as many
times as many."""


def test_probes_metrics_and_stored_plans_are_answered_within_a_second(service: Any, new_job: NewJob) -> None:
    slower = slowness(time.perf_counter)
    with httpx.Client(base_url=service.url, timeout=300, headers=service.authorization) as client:
        plan_id = client.post("/v1/plans", json=new_job()).json()["plan_id"]
        address = service.url.removeprefix("http://")
        command = [sys.executable, str(ATTACKER), address, service.token, plan_id, str(SECONDS)]
        attack = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        paths = "/readyz", "/metrics", f"/v1/plans/{plan_id}"
        asked: dict[str, list[tuple[int, float]]] = {path: [] for path in paths}
        while attack.poll() is None:
            for path in paths:
                asked[path].append(_ask(client, path))
            time.sleep(0.1)
        assert attack.stdout is not None
        answers = json.loads(attack.stdout.read())
        # Those who left and those who stayed away have cost nobody a process.
        again = client.post("/v1/plans", json=new_job())
        service.wait_until_idle()
    for path, found in asked.items():
        seconds = sorted(each for _, each in found)
        late = sum(each > slower * MOST_SECONDS for each in seconds)
        print(f"{path}: {len(found)}, median {median(seconds):.3f} s, longest {seconds[-1]:.3f} s, {late} late")
    print(json.dumps(answers))

    assert _share(asked, lambda status, _: status != 200) <= slower * MOST_REFUSED
    assert [path for path in paths if median(each for _, each in asked[path]) >= slower * MOST_SECONDS] == []
    assert again.status_code == 200
    assert not [kind for kind, counted in answers.items() if "500" in counted]


def _share(asked: dict[str, list[tuple[int, float]]], what: Callable[[int, float], bool]) -> float:
    """Of the answers of the path that has most of them."""
    return max(sum(what(*answer) for answer in found) / len(found) for found in asked.values())


def _ask(client: httpx.Client, path: str) -> tuple[int, float]:
    began = time.monotonic()
    answer = client.get(path)
    if answer.status_code != 200:
        print(f"{path}: {answer.status_code} {answer.text[:200]}")
    return answer.status_code, time.monotonic() - began
