"""`planner serve` as a person, or a supervisor, runs it: a process that starts, answers, and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from planner_serve import Processes, until

from planner.job.loading import bundle, load_job
from planner.service.history.store import History
from planner.service.http.openapi import EXAMPLE_JOB
from planner.service.local_ray import free_ports

pytestmark = pytest.mark.cluster

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass
class Serving:
    """A process group of its own, so that whatever stays of it can be found."""

    process: subprocess.Popen[str]
    url: str
    database: str

    def left(self) -> list[str]:
        """The commands of processes that are still there, some seconds after."""
        until = time.monotonic() + 5
        while (found := self._there()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _there(self) -> list[str]:
        said = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True).stdout
        lines = [line.split(None, 2) for line in said.splitlines()]
        return [args for sid, state, args in lines if int(sid) == self.process.pid and state[0] != "Z"]


def command(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "planner", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PLANNER_TRACE_WORKERS": "1", **environment},
    )


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """One that is ready. Runs beside no other Ray of this session."""
    (port,) = free_ports(1)
    database = f"sqlite:///{tmp_path / 'planner.sqlite'}"
    process = command("--port", port, "--database", database)
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=process.stderr.read, daemon=True).start()
    line = process.stdout.readline()
    assert re.fullmatch(rf"planner is ready at http://127\.0\.0\.1:{port}\n", line)
    yield Serving(process, f"http://127.0.0.1:{port}", database)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_plan_that_is_asked_for_before_the_end_is_answered_and_stored_and_nothing_stays(serving: Serving) -> None:
    job = bundle(load_job(EXAMPLES / "gpt2-xl.yaml"))
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.post, f"{serving.url}/v1/plans", json=job, timeout=60)
        time.sleep(1.0)  # it is being traced now
        serving.process.send_signal(signal.SIGTERM)
        found = answer.result()

    assert serving.process.wait(60) == 0
    assert found.status_code == 200
    with History.open(serving.database) as history:
        assert history.plans.text(found.json()["plan_id"]) == found.text
    assert serving.left() == []
    assert serving.process.stdout is not None
    assert serving.process.stdout.read() == ""


def test_its_ray_asks_for_a_token_and_ctrl_c_is_a_clean_end_of_all_processes_at_once(serving: Serving) -> None:
    """Its ports listen on every address of the machine, and run code. One service for both: a start takes long."""
    said = subprocess.run(["ps", "-wweo", "sid=,args="], capture_output=True, text=True, check=True).stdout
    (address,) = {
        found[1]
        for line in said.splitlines()
        if line.split(None, 1)[0] == str(serving.process.pid) and (found := re.search(r"--gcs-address=(\S+)", line))
    }
    command = [str(Path(sys.executable).with_name("ray")), "status", "--address", address]
    without, bearer = (
        subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "RAY_AUTH_MODE": mode})
        for mode in ("disabled", "token")
    )

    assert without.returncode != 0
    assert "Unauthenticated" in without.stderr + without.stdout
    assert (bearer.returncode, "Resources" in bearer.stdout) == (0, True), bearer.stderr
    assert httpx.post(f"{serving.url}/v1/checks", json=EXAMPLE_JOB, timeout=60).status_code in (200, 202)

    os.killpg(serving.process.pid, signal.SIGINT)

    assert serving.process.wait(60) == 0
    assert serving.left() == []


def test_a_port_in_use_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = command("--port", taken.getsockname()[1])
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (2, "")
    assert "it is in use" in err


@pytest.mark.parametrize(
    ("database", "said"),
    [
        ("sqlite:////nowhere/at/all.sqlite", "cannot be opened"),
        ("oracle://x", "is no database that is supported"),
        ("sqlite://", "in memory"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_before_anything_starts(database: str, said: str) -> None:
    (port,) = free_ports(1)
    process = command("--port", port, "--database", database)
    out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (2, "")
    assert said in err


def hears_sigterm(process: subprocess.Popen[str]) -> bool:
    said = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return said is not None and bool(int(said[1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.parametrize("stage", ["before Ray", pytest.param("the application is coming up", marks=pytest.mark.soak)])
def test_a_signal_while_it_starts_ends_it_too(tmp_path: Path, stage: str) -> None:
    (port,) = free_ports(1)
    process = command("--port", port, "--database", f"sqlite:///{tmp_path / 'planner.sqlite'}")
    until(lambda: hears_sigterm(process), "it does not hear signals")
    if stage != "before Ray":
        Processes(process).wait_for("ray::ServeController")
    process.terminate()
    out, _ = process.communicate(timeout=60)

    assert (process.returncode, out) == (0, "")
    assert Serving(process, "", "").left() == []
