"""A service that runs: one Ray for all tests of a session, the application in it, and a store in a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from plan_makers import StackRunner
from planner_serve import until
from starlette.testclient import TestClient
from stored import new_history

from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.loading import load_document
from planner.job.schema import Job
from planner.planning.plan import plan_job
from planner.report.statement import Plan, to_json
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.http.openapi import EXAMPLE_JOB
from planner.service.local_ray import environment, free_port_range, free_ports, instance_folder, local_ray
from planner.service.orders import RunRequest
from planner.service.plan_provider import PlanAnswer
from planner.settings import Settings

PRETENDED_GPUS: dict[str, Any] = {"num_gpus": 2, "labels": {"ray.io/accelerator-type": "H100"}}
"""For the validations: Ray schedules on them what runs on the CPU."""


@dataclass(frozen=True)
class Service:
    """Where it answers, how it is set, and what it stores."""

    base_url: str
    settings: Settings
    history: History


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Ray in this process. Serve reads its environment while it is imported: nothing may import it before."""
    with instance_folder() as folder:
        os.environ.update(environment(folder, free_port_range()))
        with local_ray(folder, num_cpus=4, **PRETENDED_GPUS, log_to_driver=bool(os.environ.get("PLANNER_TEST_LOGS"))):
            yield


@pytest.fixture(scope="session")
def service(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:  # noqa: ARG001
    """The application with two tracing processes, over HTTP."""
    from ray import serve

    from planner.service.app import NAME, application

    folder = tmp_path_factory.mktemp("store")
    settings = Settings(
        database=f"sqlite:///{folder / 'planner.sqlite'}", trace_workers=2, trace_seconds=180.0, programs=True,
        factories_as_root=True,
    )  # fmt: skip
    (port,) = free_ports(1)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application(settings), name=NAME, route_prefix="/")
    wait_until_ready(f"http://127.0.0.1:{port}")
    with History.open(settings.database) as history:
        yield Service(f"http://127.0.0.1:{port}", settings, history)
    serve.shutdown()


@dataclass
class FakePlanProvider:
    """Knows one plan and says it of every job; or raises, or has it pending."""

    text: str
    fault: Exception | None = None
    pending: bool = False
    asked: list[tuple[Job, float | None]] = field(default_factory=list)
    ran: list[tuple[RunRequest, float | None]] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)

    async def plan(self, asked: Job | RunRequest, *, seconds: float | None, keep: bool) -> PlanAnswer:
        if isinstance(asked, RunRequest):
            self.ran.append((asked, seconds))
        else:
            self.asked.append((asked, seconds))
        if self.fault is not None:
            raise self.fault
        found = json.loads(self.text)
        text = "" if keep and self.pending else self.text
        return PlanAnswer(plan_id=found["plan_id"], trace_id=found["trace_id"], text=text, from_store=True)

    def bound(self, job: Job) -> Bound:
        return lower_bound(job)

    async def end_run(self, plan_id: str) -> bool:
        return plan_id in self.under_way


@pytest.fixture(scope="session")
def example_plan() -> Plan:
    """The plan of the example that the service's description has."""
    return plan_job(load_document(EXAMPLE_JOB)).plan


@pytest.fixture
def plan_provider(example_plan: Plan) -> FakePlanProvider:
    return FakePlanProvider(json.dumps(to_json(example_plan)))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History.open(new_history(tmp_path)) as opened:
        yield opened


@pytest.fixture
def counted() -> list[tuple[str, Mapping[str, str]]]:
    return []


@pytest.fixture
def asgi(
    plan_provider: FakePlanProvider, history: History, counted: list[tuple[str, Mapping[str, str]]]
) -> Callable[..., TestClient]:
    """A client of the interface in this process, without Ray, under some settings."""

    class Counters:
        def add(self, name: str, labels: Mapping[str, str], value: float = 1.0) -> None:  # noqa: ARG002
            counted.append((name, labels))

        def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:  # noqa: ARG002
            counted.append((name, labels))

    def make(most_at_once: int = 8, tracers_ready: Any = None, **settings: Any) -> TestClient:
        dependencies = Dependencies(
            settings=Settings(**settings),
            history=history,
            plan_provider=plan_provider,
            counters=Counters(),
            tracers_ready=tracers_ready,
        )
        return TestClient(interface(dependencies, most_at_once), raise_server_exceptions=False)

    return make


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.base_url, timeout=300) as found:
        yield found


def wait_until_ready(base_url: str, seconds: float = 600.0) -> None:
    """Returns when jobs are planned there: PyTorch is loaded in some seconds."""
    until = time.monotonic() + seconds
    said = ""
    while time.monotonic() < until:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{base_url}/readyz", timeout=60)
            if answer.status_code == 200:
                return
            said = answer.text
        time.sleep(0.2)
    pytest.fail(f"the service is not ready after {seconds:g} s: {said}")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    return until


@pytest.fixture
def run_stack(tmp_path: Path) -> StackRunner:
    return StackRunner(tmp_path)
