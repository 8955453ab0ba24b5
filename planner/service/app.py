"""Builds the Serve application: replicas that answer, and one each that schedules plans, runs validations, searches."""

from __future__ import annotations

import asyncio
import faulthandler
import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from planner.service import deployments
from planner.service.deployments import (
    TRACERS,
    PlanSchedulerDeployment,
    RunnerHandle,
    SearchesDeployment,
    TracingHandle,
    ValidationsDeployment,
)
from planner.service.history.counters import Counters
from planner.service.history.store import History
from planner.service.http.dependencies import Dependencies
from planner.service.http.interface import interface
from planner.service.logs import start_logging
from planner.service.plan_provider import CalibrationInUse, PlanProvider
from planner.service.torch_versions import ONLY_OWN, TorchVersions, read_torch_versions
from planner.service.validation.runner import STOP_SECONDS
from planner.settings import Settings

BEATS = 5
"""How often within its time the loop says that it goes."""
_STANDARD_ERROR = 2
"""The file itself: whatever stands in sys.stderr may need Python's lock."""


class LoopWatchdog:
    """ASGI middleware: from the application's startup to its shutdown its event loop has to go.

    The time is kept by a thread that needs no lock of Python's (faulthandler), so that a call into C that holds the
    lock is found out too. It writes where every thread stands to standard error, and ends the process with 1.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" or not self._seconds:
            await self._app(scope, receive, send)
            return
        beating = asyncio.create_task(self._beat())
        try:
            await self._app(scope, receive, send)
        finally:
            beating.cancel()
            faulthandler.cancel_dump_traceback_later()

    async def _beat(self) -> None:
        while True:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=_STANDARD_ERROR)
            await asyncio.sleep(self._seconds / BEATS)


NAME = "planner"
GRACE_SECONDS = 45.0
"""A replica that ends waits so long for those whose plan is being made: longer than the tracers need to tell them."""


@serve.ingress()
class Planner:
    """A replica: one dependencies, and the HTTP interface to it. Holds nothing that is not in the history."""

    def __init__(
        self,
        settings: Settings,
        tracers: DeploymentHandle[Any],
        validations: DeploymentHandle[Any],
        searches: DeploymentHandle[Any],
        torches: TorchVersions = ONLY_OWN,
    ) -> None:
        start_logging(settings.log_level)
        self._history = History.open(settings.database)
        self._counters = Counters(self._history.totals)
        self._counters.start()
        tracing = TracingHandle(tracers)
        self._dependencies = Dependencies(
            settings=settings,
            history=self._history,
            plan_provider=PlanProvider(
                settings, self._history, tracing, CalibrationInUse(self._history), torches=torches
            ),
            torches=torches,
            validations=RunnerHandle(validations, "measuring worker"),
            searches=RunnerHandle(searches, "search worker"),
            counters=self._counters,
            tracers_ready=tracing.ready,
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return LoopWatchdog(interface(self._dependencies), self._dependencies.settings.loop_seconds)

    def __del__(self) -> None:
        self._counters.close()
        self._history.close()


def build(args: Mapping[str, Any] | None = None) -> Application:
    """The application by its settings: those in `args`, else those in the environment.

    Raises SettingError for a setting that cannot be used.
    """
    return application(Settings.read(args, os.environ))


def application(settings: Settings) -> Application:
    torches = read_torch_versions(settings.torch_versions)
    replicas = serve.deployment(
        name="Planner",
        # The replica's own limits come first (planner.service.http.limits): they let probes through, and count whom
        # they refuse, which Ray's do not.
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=GRACE_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=1,  # so soon a replica that died is found out, and another one started
        logging_config={"log_level": "WARNING", "enable_access_log": False},  # the replica writes its own
        ray_actor_options={"num_cpus": 0.1},
    )(Planner)
    tracers = _bind_one(
        PlanSchedulerDeployment, settings, torches, name=TRACERS, health_check_period_s=2,
        max_ongoing_requests=10_000,  # they wait here, where equal jobs are known; its own bound is lower
        graceful_shutdown_timeout_s=deployments.GRACE_SECONDS,
    )  # fmt: skip
    searches = _bind_one(
        SearchesDeployment, settings, tracers, torches, name="Searches", health_check_period_s=2,
        max_ongoing_requests=100, graceful_shutdown_timeout_s=5.0,
    )  # fmt: skip
    validations = _bind_one(
        ValidationsDeployment, settings, torches, name="Validations", max_ongoing_requests=100,
        graceful_shutdown_timeout_s=2 * STOP_SECONDS,
    )  # fmt: skip
    return replicas.bind(settings, tracers, validations, searches, torches)


def _bind_one(deployed: Any, *arguments: Any, **options: Any) -> Any:
    deployment = serve.deployment(
        num_replicas=1, graceful_shutdown_wait_loop_s=0.5, ray_actor_options={"num_cpus": 0.1}, **options
    )
    return deployment(deployed).bind(*arguments)
