"""The commands of docs/operations.md, run while the service writes: what comes back is whole, and goes on."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from filled_history import make_plan
from planner_serve import until
from scraped import serving

from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.units import GIB

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
PLAN_ID = "pl-" + "a" * 26
WRITERS, BEFORE, AFTER = 2, 40, 20
"""Who tells of jobs, and how many jobs are told of before the backup begins, and once it is taken."""


def commands(database: str) -> list[str]:
    """Of that database's section: to back up, then to restore."""
    section = PAGE.partition(f"### {database}\n")[2].partition("\n#")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def run(command: str, folder: Path, **environment: str) -> None:
    ended = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


@dataclass
class Busy:
    """A service that jobs tell of themselves without a pause."""

    url: str
    told: list[str] = field(default_factory=list)
    """The ids of jobs whose telling was answered."""
    begun: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def waits_for(self, count: int) -> None:
        until(lambda: len(self.told) >= count or self.faults, "nothing is written", 60)
        assert not self.faults

    def tells(self, writer: int, enough: threading.Event) -> None:
        with httpx.Client(base_url=self.url, timeout=300) as client:
            for number in range(100_000):
                if enough.is_set():
                    return
                job_id = f"{writer}-{number}"
                self.begun.append(job_id)
                answer = client.put(f"/v1/jobs/slurm/{job_id}", json=report_of(job_id))
                if answer.status_code != 200:
                    self.faults.append(answer.text)
                    return
                self.told.append(job_id)


def report_of(job_id: str) -> dict[str, Any]:
    measured = {"rank": 0, "host": f"node-{job_id}", "device_bytes": 38 * GIB + len(job_id)}
    return {"plan_id": PLAN_ID, "hosts": [f"node-{job_id}"], "measured": [measured]}


@contextmanager
def answering(database: str) -> Iterator[str]:
    """The service's interface over that database."""
    with History.open(database) as history, Counters(history.totals) as counters, serving(history, counters) as port:
        if history.plans.text(PLAN_ID) is None:
            history.plans.put(replace(make_plan(), plan_id=PLAN_ID))
        yield f"http://127.0.0.1:{port}"


@contextmanager
def busy(database: str) -> Iterator[Busy]:
    enough = threading.Event()
    with answering(database) as url:
        found = Busy(url)
        writers = [threading.Thread(target=found.tells, args=(each, enough)) for each in range(WRITERS)]
        for each in writers:
            each.start()
        try:
            yield found
        finally:
            enough.set()
            for each in writers:
                each.join()


def backed_up(database: str, command: str, folder: Path, environment: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """What was told before the backup began: all of that has to be in it. And what was begun when it was done."""
    with busy(database) as service:
        service.waits_for(BEFORE)
        before = set(service.told)
        run(command, folder, **environment)
        begun = set(service.begun)
        service.waits_for(len(service.told) + AFTER)
    return before, begun


def is_whole_and_goes_on(database: str, before: set[str], begun: set[str]) -> None:
    with answering(database) as url, httpx.Client(base_url=url, timeout=300) as client:
        told = {job_id: client.get(f"/v1/jobs/slurm/{job_id}") for job_id in sorted(begun)}
        there = {job_id for job_id, answer in told.items() if answer.status_code == 200}

        assert client.get("/readyz").status_code == 200
        assert before <= there
        for job_id in there:
            found = told[job_id].json()
            assert {name: found[name] for name in ("plan_id", "hosts")} == {
                name: report_of(job_id)[name] for name in ("plan_id", "hosts")
            }
            assert [each["device_bytes"] for each in found["measured"]] == [38 * GIB + len(job_id)]
        assert client.get(f"/v1/plans/{PLAN_ID}").json()["plan_id"] == PLAN_ID
        assert client.get("/v1/capacity").json()["totals"]["jobs"] == len(there)
        assert client.put("/v1/jobs/slurm/new", json=report_of("new")).status_code == 200


def test_sqlite(tmp_path: Path) -> None:
    backup, restore = commands("SQLite")
    database = f"sqlite:///{tmp_path / 'planner.sqlite'}"
    before, begun = backed_up(database, backup, tmp_path, {})

    (tmp_path / "planner.sqlite").write_bytes(b"a disk that was lost")
    (tmp_path / "planner.sqlite-wal").write_bytes(b"and what it left")
    run(restore, tmp_path)

    is_whole_and_goes_on(database, before, begun)


def test_postgresql(postgresql: Any, tmp_path: Path) -> None:
    backup, restore = commands("PostgreSQL")
    database, restored = postgresql.new_database(), postgresql.new_database()
    environment = {
        "PLANNER_DATABASE": database,
        "RESTORED_DATABASE": restored,
        "PATH": f"{postgresql.binaries}:{os.environ['PATH']}",
    }
    before, begun = backed_up(database, backup, tmp_path, environment)

    run(restore, tmp_path, **environment)

    is_whole_and_goes_on(restored, before, begun)
