"""SearchRunner as a Serve deployment, with its handle."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from planner.errors import PlannerError
from planner.history.store import History
from planner.searching.requests import SearchRequest
from planner.service import search_document
from planner.service.logs import start_logging
from planner.service.outcomes import PlanRefused
from planner.service.scheduler_deployment import TracingHandle
from planner.service.search_runner import SearchRunner
from planner.service.service_errors import WorkerLostError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings

HANDED_OVER_SECONDS = 30.0
"""How long a replica waits for a deployment that is being started anew."""
Document = dict[str, Any]


class SearchesDeployment:
    """One replica, which runs all searches of the service."""

    def __init__(self, settings: Settings, tracers: DeploymentHandle[Any], torches: TorchVersions = ONLY_OWN) -> None:
        start_logging(settings.log_level)
        self._settings, self._tracing, self._torches = settings, TracingHandle(tracers), torches
        self._history = History.open(settings.database)
        self._runner: SearchRunner | None = None
        self._starting = asyncio.Lock()

    async def start(self, request: SearchRequest) -> Document | PlanRefused:
        """The search as it is stored. Refusals travel as values: an exception would arrive wrapped."""
        runner = await self._start_runner()
        try:
            return search_document.to_json(await asyncio.to_thread(runner.start, request))
        except PlannerError as error:
            return PlanRefused(error)

    async def cancel(self, search_id: str) -> Document | PlanRefused | None:
        """As :meth:`start`; None if there is none."""
        runner = await self._start_runner()
        try:
            found = await asyncio.to_thread(runner.cancel, search_id)
        except PlannerError as error:
            return PlanRefused(error)
        return None if found is None else search_document.to_json(found)

    async def check_health(self) -> None:
        """Called by Serve from the beginning: so what a predecessor left is settled."""
        await self._start_runner()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made
            if self._runner is not None:
                self._runner.close()
            self._history.close()

    async def _start_runner(self) -> SearchRunner:
        async with self._starting:
            if self._runner is None:
                runner = SearchRunner(self._history, self._settings, self._tracing, self._worker_count, self._torches)
                await asyncio.to_thread(runner.begin)
                self._runner = runner
        return self._runner

    async def _worker_count(self) -> int:
        return (await self._tracing.state())["workers"]


def searches_application(settings: Settings, tracers: Any, torches: TorchVersions = ONLY_OWN) -> Any:
    """To be bound into the application as the argument from which :class:`SearchesHandle` is made."""
    deployment = serve.deployment(
        name="Searches",
        num_replicas=1,
        max_ongoing_requests=100,
        health_check_period_s=2,
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
    )(SearchesDeployment)
    return deployment.bind(settings, tracers, torches)


class SearchesHandle:
    """The deployment as a replica of the service sees it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def start(self, request: SearchRequest) -> Document:
        """The search as it is stored: waiting, running or done.

        Raises SpecError, BusyError, HistoryError, and WorkerLostError if the deployment is not there.
        """
        found = await self._ask(self._handle.start.remote(request))
        assert found is not None
        return found

    async def cancel(self, search_id: str) -> Document | None:
        """As :meth:`start`, of one that ends within a moment; None if there is none."""
        return await self._ask(self._handle.cancel.remote(search_id))

    async def _ask(self, response: Any) -> Document | None:
        try:
            async with asyncio.timeout(HANDED_OVER_SECONDS):
                answer = await response
        except (TimeoutError, RayError, RayServeException) as lost:
            raise WorkerLostError(
                "the part of this service that searches is not there now", remedy="try again"
            ) from lost
        if isinstance(answer, PlanRefused):
            raise answer.error
        return None if answer is None else dict(answer)
