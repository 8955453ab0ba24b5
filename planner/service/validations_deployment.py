"""ValidationRunner as a Serve deployment, with its handle."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from planner.errors import PlannerError
from planner.history.store import History
from planner.service.logs import start_logging
from planner.service.outcomes import PlanRefused
from planner.service.service_errors import WorkerLostError
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.service.validation_runner import STOP_SECONDS, ValidationRunner, conditions_of
from planner.settings import Settings
from planner.validation import request as requests
from planner.validation import validation_document, validation_run

HANDED_OVER_SECONDS = 30.0
"""How long a replica waits for a deployment that is being started anew."""


class ValidationsDeployment:
    """One replica, which runs all validations of the service."""

    def __init__(self, settings: Settings, torches: TorchVersions = ONLY_OWN) -> None:
        start_logging(settings.log_level)
        validation_run.hide_gpus()
        self._history = History.open(settings.database)
        self._validating = ValidationRunner(self._history, settings, conditions_of(settings), torches=torches)
        self._validating.begin()

    async def start(self, request: Mapping[str, Any]) -> dict[str, Any] | PlanRefused:
        """The validation as it was stored. Refusals travel as values: an exception would arrive wrapped."""
        try:
            return await asyncio.to_thread(self._start, request)
        except PlannerError as error:
            return PlanRefused(error)

    async def process(self) -> int:
        """Its process id."""
        return os.getpid()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never made
            self._validating.close()
            self._history.close()

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return validation_document.to_json(self._validating.start(requests.from_json(request)))


def validations_application(settings: Settings, torches: TorchVersions = ONLY_OWN) -> Any:
    """To be bound into the application as the argument from which :class:`ValidationsHandle` is made."""
    deployment = serve.deployment(
        name="Validations",
        num_replicas=1,
        max_ongoing_requests=100,
        graceful_shutdown_timeout_s=2 * STOP_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": 0.1},
    )(ValidationsDeployment)
    return deployment.bind(settings, torches)


class ValidationsHandle:
    """The deployment as a replica of the service sees it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def start(self, asked: requests.Request) -> dict[str, Any]:
        """The validation as it was stored: pending, or refused by the cluster.

        Raises BusyError, HistoryError, and WorkerLostError if the deployment is not there.
        """
        try:
            async with asyncio.timeout(HANDED_OVER_SECONDS):
                answer = await self._handle.start.remote(requests.to_json(asked))
        except (TimeoutError, RayError, RayServeException) as lost:
            raise WorkerLostError(
                "the part of this service that measures is not there now", remedy="try again"
            ) from lost
        if isinstance(answer, PlanRefused):
            raise answer.error
        return dict(answer)

    async def process(self) -> int:
        """The process id of the deployment."""
        found: int = await self._handle.process.remote()
        return found
