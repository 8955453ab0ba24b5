"""What can be said to a person whose job was not planned now, or not here."""

from __future__ import annotations

from planner.errors import PlannerError


class ServiceError(PlannerError):
    """The service cannot do what was asked."""


class BusyError(ServiceError):
    """More jobs wait already than are let wait; `retry_after_seconds` is when it is worth while to ask again."""

    def __init__(
        self, problem: str, *, allowed: str = "", remedy: str = "", place: str = "", retry_after_seconds: int = 1
    ) -> None:
        super().__init__(problem, allowed=allowed, remedy=remedy, place=place)
        self.retry_after_seconds = retry_after_seconds


class DeadlineError(ServiceError):
    """The plan was not ready within the time that its caller gave it."""


class TraceLimitError(ServiceError):
    """The trace takes more time or memory than one job may take here: the same job will not do better later."""


class WorkerLostError(ServiceError):
    """The process that traced the job died, twice, or none can be started: the same job may succeed later."""


class FactoryNotAllowedError(ServiceError):
    """The job brings code (`model.factory`), and whoever runs this service has not allowed that."""
