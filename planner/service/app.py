"""Builds the Serve application: replicas that answer, and one each that schedules plans, runs validations, searches.

`serve deploy deploy/serve.yaml` and `planner serve` build it from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from planner.history.counters import Counters
from planner.history.store import History
from planner.service.calibration_in_use import CalibrationInUse
from planner.service.dependencies import Dependencies
from planner.service.interface import interface
from planner.service.logs import start_logging
from planner.service.loop_watchdog import LoopWatchdog
from planner.service.plan_provider import PlanProvider
from planner.service.request_log import MOST_AT_ONCE
from planner.service.scheduler_deployment import TracingHandle, tracers_application
from planner.service.searches_deployment import SearchesHandle, searches_application
from planner.service.torch_versions import ONLY_OWN, TorchVersions, read_torch_versions
from planner.service.validations_deployment import ValidationsHandle, validations_application
from planner.settings import Settings

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
            validations=ValidationsHandle(validations),
            searches=SearchesHandle(searches),
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
    """The application by its settings. Raises SettingError for a torch that cannot be had."""
    torches = read_torch_versions(settings.torch_versions)
    replicas = serve.deployment(
        name="Planner",
        # The replica's own limit comes first, and answers in the words of this service; Ray's is the last resort.
        max_ongoing_requests=2 * MOST_AT_ONCE,
        max_queued_requests=MOST_AT_ONCE,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        graceful_shutdown_timeout_s=GRACE_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        health_check_period_s=1,  # so soon a replica that died is found out, and another one started
        logging_config={"log_level": "WARNING", "enable_access_log": False},  # the replica writes its own
        ray_actor_options={"num_cpus": 0.1},
    )(Planner)
    tracers = tracers_application(settings, torches)
    searches = searches_application(settings, tracers, torches)
    return replicas.bind(settings, tracers, validations_application(settings, torches), searches, torches)
