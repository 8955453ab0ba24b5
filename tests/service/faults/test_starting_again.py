"""Any process of a service is killed: it is ready again soon, on the same port, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from planner.job.loading import bundle, load_job
from planner.service.history.store import History
from planner.service.local_ray import LOCK, VARIABLE, free_ports

pytestmark = pytest.mark.cluster

NewJob = Callable[..., dict[str, Any]]
READY_SECONDS = 600.0
"""Until which a test waits for what takes some seconds, or a minute on a busy machine."""
VITAL = ("gcs_server", "planner", "raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Without these it ends. `planner` is `planner serve` itself; the others end with one of these."""
MENDED = ["ray::TracingWorker"]
KILLED_ELSEWHERE = [
    "haproxy", "ray::ServeReplica:planner:Planner", "ray::ServeReplica:planner:Tracers", "ray::ServeController",
    "ray::ServeReplica:planner:Validations", "ray::ProxyActor",
]  # fmt: skip
"""While it has work, in test_killed_in_the_middle.py and the tests of validations, but for the last: nobody talks to
it."""
EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt2-xl.yaml"


class Port:
    """One service after the other, at one address and over one store."""

    def __init__(self, start: Callable[..., Any], database: str, stack: ExitStack) -> None:
        self._start, self._database, self._stack = start, database, stack
        (self._port,) = free_ports(1)
        self.service = self.started()

    def started(self) -> Any:
        limits = {"trace_workers": 1, "trace_seconds": 600}
        self.service = self._stack.enter_context(self._start(self._database, port=self._port, **limits))
        return self.service

    def kill(self, name: str) -> None:
        if name == "planner":
            self.service.processes.main.kill()
            self.service.processes.main.wait()
        else:
            self.service.processes.kill(name)


def folder_of(service: Any) -> Path:
    (gcs,) = service.processes.named("gcs_server")
    words = Path(f"/proc/{gcs}/environ").read_text().split("\0")
    return Path(next(word.partition("=")[2] for word in words if word.startswith(f"{VARIABLE}=")))


@pytest.fixture(scope="module")
def port(planner_serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    with ExitStack() as stack:
        database = f"sqlite:///{tmp_path_factory.mktemp('again') / 'planner.sqlite'}"
        yield Port(planner_serve, database, stack)


@pytest.mark.parametrize("name", VITAL)
def test_one_without_which_it_ends_is_killed_and_it_starts_again(
    port: Port, new_job: NewJob, eventually: Any, name: str
) -> None:
    job = new_job()
    before, folder, gone = port.service.insist(job), folder_of(port.service), port.service
    port.kill(name)
    gone.processes.main.wait(READY_SECONDS)
    again = port.started()
    print(f"{name}: ready {again.start_seconds:.1f} s after the next start")

    assert not folder.exists()
    eventually(lambda: not gone.processes.commands(), f"left: {gone.processes.commands()}")
    assert again.insist(job).content == before.content


@pytest.mark.parametrize("name", KILLED_ELSEWHERE + MENDED)
def test_one_that_is_mended_is_killed_and_it_is_ready_again(service: Any, new_job: NewJob, name: str) -> None:
    asked = service.begin(new_job(24, iterations=30, optimizer={"name": "RAdam"}))  # traced for some seconds
    killed = service.processes.kill(name)
    began = time.monotonic()
    service.processes.wait_for(name, besides=killed)
    service.wait_until_ready(READY_SECONDS)
    print(f"{name}: ready after {time.monotonic() - began:.1f} s")

    fault = asked.exception()  # HAProxy takes the connection with it
    if name == "ray::TracingWorker":
        assert (fault, asked.result().status_code) == (None, 200), asked.result().text


def test_whatever_else_belongs_to_it_is_killed_and_it_goes_on(service: Any) -> None:
    """What Ray starts besides, in this version or the next."""
    known = {pid for name in (*KILLED_ELSEWHERE, *MENDED, *VITAL) for pid in service.processes.named(name)}
    rest = set(service.processes.named("python", "python3", "ray::")) - known - {service.processes.main.pid}
    for pid in rest:
        os.kill(pid, signal.SIGKILL)
    service.wait_until_ready(READY_SECONDS)

    assert service.processes.main.poll() is None


def test_another_service_that_runs_is_left_alone(service: Any) -> None:
    from planner.service.local_ray import sweep_dead_instances

    folder, processes = folder_of(service), service.processes.numbers()

    assert folder not in sweep_dead_instances()
    assert (folder / LOCK).exists()
    assert processes <= service.processes.numbers()  # Ray may have started a worker meanwhile
    assert service.readiness()[0] == 200


def test_sigterm_while_a_trace_takes_minutes_ends_it_soon_and_its_caller_is_told_to_come_again(
    port: Port, new_job: NewJob
) -> None:
    asked = port.service.begin(new_job(48, iterations=100_000, eval={"every": 50_000}))
    began = time.monotonic()
    port.service.processes.main.send_signal(signal.SIGTERM)
    answer = asked.result(READY_SECONDS)
    code = port.service.processes.main.wait(READY_SECONDS)
    print(f"it ended after {time.monotonic() - began:.1f} s")

    assert (answer.status_code, code) == (503, 0), answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json()["problem"] == "the service is shutting down"
    assert port.service.processes.commands() == []


@pytest.mark.flaky(reruns=0)  # its service has ended then: a second try would fail, and hide why
def test_a_plan_that_is_asked_for_before_the_end_is_answered_and_stored_and_nothing_stays(
    service: Any, eventually: Any
) -> None:
    """The last one with this service."""
    asked = service.begin(bundle(load_job(EXAMPLE)))
    service.processes.main.send_signal(signal.SIGTERM)
    answer = asked.result()

    assert service.processes.main.wait(READY_SECONDS) == 0
    assert answer.status_code == 200
    with History.open(service.database) as history:
        assert history.plans.text(answer.json()["plan_id"]) == answer.text
    eventually(lambda: not service.processes.commands(), f"left: {service.processes.commands()}")
    assert service.processes.main.stdout.read() == ""
