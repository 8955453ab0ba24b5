"""The service's own interface over a socket, its plans made in this process: all of it but Ray."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from planner.answer import answer
from planner.history.store import History
from planner.report.statement import to_json
from planner.service.cluster import free_ports
from planner.service.desk import Answered, Pending
from planner.service.interface import interface
from planner.service.office import Office
from planner.settings import Settings
from planner.spec.bundle import bundle_text
from planner.spec.job import Job

TOKEN = "a-token-of-this-test"


class PlansHere:
    """A desk that plans for real, one job after the other, and stores what it made."""

    def __init__(self, history: History) -> None:
        self._history, self._one = history, threading.Lock()
        self._made: dict[str, Answered] = {}
        self.slow: set[str] = set()
        """Names of jobs whose plans are never ready."""

    async def plan(self, job: Job, *, seconds: float | None) -> Answered:  # noqa: ARG002
        return await asyncio.to_thread(self._plan, job)

    async def check(self, job: Job, *, seconds: float | None) -> Answered | Pending:
        if job.metadata.name in self.slow:
            await asyncio.sleep(min(seconds or 0.0, 1.0))
            return Pending(plan_id="pl-" + "b" * 26, trace_id="0" * 64)
        return await asyncio.to_thread(self._plan, job)

    def _plan(self, job: Job) -> Answered:
        with self._one:
            key = bundle_text(job)
            if key not in self._made:
                found = answer(job).plan
                self._history.plans.put(found)
                self._made[key] = Answered(
                    plan_id=found.plan_id, trace_id=found.trace_id, text=json.dumps(to_json(found)), from_store=False
                )
            return self._made[key]


class NoCounters:
    def add(self, *_: Any) -> None:
        pass

    def observe(self, *_: Any) -> None:
        pass


@dataclass
class RealService:
    url: str
    token: str
    history: History
    desk: PlansHere = field(repr=False)


@contextmanager
def serving(folder: Path) -> Iterator[RealService]:
    """Writes need the token."""
    import hashlib

    (port,) = free_ports(1)
    settings = Settings(
        database=f"sqlite:///{folder / 'planner.sqlite'}", token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest()
    )
    with History.open(settings.database) as history:
        desk = PlansHere(history)
        office = Office(settings=settings, history=history, desk=desk, counters=NoCounters(), tracers_ready=None)
        server = uvicorn.Server(
            uvicorn.Config(interface(office, 8), host="127.0.0.1", port=port, log_level="error", lifespan="off")
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        try:
            yield RealService(f"http://127.0.0.1:{port}", TOKEN, history, desk)
        finally:
            server.should_exit = True
            thread.join(10)
