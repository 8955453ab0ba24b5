"""What every endpoint works with: opened once by each replica, found by each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from planner.history.store import History
from planner.service.desk import Answered, Pending
from planner.settings import Settings
from planner.spec.job import Job


class Plans(Protocol):
    """Where jobs become plans: planner.service.desk.Desk, or a test's own."""

    async def plan(self, job: Job, *, seconds: float | None) -> Answered:
        """The plan. Raises DeadlineError after `seconds`, and what planning raises."""
        ...

    async def check(self, job: Job, *, seconds: float) -> Answered | Pending:
        """The plan, or, after `seconds`, under which id it will be found."""
        ...


class Counts(Protocol):
    """Counters that all replicas share."""

    def add(self, name: str, labels: Mapping[str, str], value: float = 1.0) -> None:
        """Add to a counter; returns at once."""
        ...

    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Count a value of a distribution; returns at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """A replica's doors to the rooms below."""

    settings: Settings
    history: History
    desk: Plans
    validations: Any = None
    """The handle of the deployment that measures on the cluster's GPUs; None where there is none."""
    counters: Counts | None = None
    tracers_ready: Callable[[], Awaitable[None]] | None = None
    """Returns when tracing processes can be reached, and raises where they cannot."""


def office(request: Request) -> Office:
    """The office of the replica that answers: `Depends(office)` in an endpoint."""
    found: Office = request.app.state.office
    return found
