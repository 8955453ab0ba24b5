"""The service's own interface over a socket, its plans made in this process: all of it but Ray."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from stored import put_traces

from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.loading import bundle_text
from planner.job.schema import Job
from planner.planning.plan import plan_job
from planner.report.statement import to_json
from planner.searching.exact_plans import Answer, Group, plan_here
from planner.searching.plan_advice import add_advice
from planner.searching.requests import SearchRequest
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.local_ray import free_ports
from planner.service.plan_provider import PlanAnswer
from planner.service.scheduling import search_runner
from planner.service.scheduling.search_runner import SearchRunner
from planner.settings import Settings

TOKEN = "a-token-of-this-test"


class PlansHere:
    """A plan_provider that plans for real, one job after the other, and stores what it made."""

    def __init__(self, history: History) -> None:
        self._history, self._one = history, threading.Lock()
        self._made: dict[str, PlanAnswer] = {}
        self.slow: set[str] = set()
        """Names of jobs whose plans are not ready as long as they are here."""
        self.asked: Counter[str] = Counter()
        """How often a plan was asked for, by the job's name."""
        self.begun = self.ended = 0
        """Plans that were not known when they were asked for, and those of them that are there or have failed."""

    def bound(self, job: Job) -> Bound:
        return lower_bound(job)

    async def plan(self, job: Job, *, seconds: float | None, keep: bool) -> PlanAnswer:
        self.asked[job.metadata.name] += 1
        if keep and job.metadata.name in self.slow:
            await asyncio.sleep(min(seconds or 0.0, 1.0))
        if keep and job.metadata.name in self.slow:
            return PlanAnswer(plan_id="pl-" + "b" * 26, trace_id="0" * 64)
        key = bundle_text(job)
        if key in self._made:
            return self._made[key]
        self.begun += 1
        return await asyncio.to_thread(self._plan, key, job)

    def _plan(self, key: str, job: Job) -> PlanAnswer:
        with self._one, self._ending():
            if key not in self._made:
                result = add_advice(plan_job(job))
                found = result.plan
                self._history.plans.put(found)
                traces = {each.rank_class.representative: each.trace for each in result.traces}
                put_traces(self._history, found.trace_id, traces)
                self._made[key] = PlanAnswer(
                    plan_id=found.plan_id, trace_id=found.trace_id, text=json.dumps(to_json(found))
                )
            return self._made[key]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.ended += 1


class GroupsHere:
    """Plans the candidates of searches for real, in a thread of this process, one group after the other."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self.held = threading.Event()
        """Where it is set, no group is begun."""

    async def plan_group(self, group: Group) -> tuple[Answer, ...]:
        while self.held.is_set():
            await asyncio.sleep(0.02)
        return await asyncio.to_thread(self._plan, group)

    def _plan(self, group: Group) -> tuple[Answer, ...]:
        with self._one:
            return plan_here(group)


class SearchesHere:
    """What a replica has of the deployment that searches, in this process: the runner on the loop that answers."""

    def __init__(self, history: History, settings: Settings, groups: Any = None, workers: int = 1) -> None:
        self._history, self._settings, self._workers = history, settings, workers
        self.groups = groups or GroupsHere()
        self._runner: SearchRunner | None = None

    async def start(self, request: SearchRequest) -> dict[str, Any]:
        if self._runner is None:
            self._runner = SearchRunner(self._history, self._settings, self.groups, self._count_workers)
            await asyncio.to_thread(self._runner.begin)
        return search_runner.to_json(await asyncio.to_thread(self._runner.start, request))

    async def cancel(self, search_id: str) -> dict[str, Any] | None:
        assert self._runner is not None
        found = await asyncio.to_thread(self._runner.cancel, search_id)
        return None if found is None else search_runner.to_json(found)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()

    async def _count_workers(self) -> int:
        return self._workers


@dataclass
class RealService:
    url: str
    token: str
    history: History
    plan_provider: PlansHere = field(repr=False)
    searches: SearchesHere = field(repr=False)


@contextmanager
def serving(folder: Path) -> Iterator[RealService]:
    """Writes need the token."""
    import hashlib

    (port,) = free_ports(1)
    settings = Settings(
        database=f"sqlite:///{folder / 'planner.sqlite'}", token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest()
    )
    with History.open(settings.database) as history:
        plan_provider = PlansHere(history)
        searches = SearchesHere(history, settings)
        dependencies = Dependencies(settings=settings, history=history, plan_provider=plan_provider, searches=searches)
        server = uvicorn.Server(
            uvicorn.Config(interface(dependencies, 8), host="127.0.0.1", port=port, log_level="error", lifespan="off")
        )
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        try:
            yield RealService(f"http://127.0.0.1:{port}", TOKEN, history, plan_provider, searches)
        finally:
            searches.close()
            server.should_exit = True
            thread.join(10)
