"""Dependencies shared by a replica's endpoints: opened once, injected into each request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.requests import Request

from planner.bound.lower_bound import Bound
from planner.history.store import History
from planner.job.schema import Job
from planner.service.orders import RunRequest
from planner.service.plan_provider import PlanAnswer, PlanPending
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.settings import Settings


class Plans(Protocol):
    """Where jobs become plans: planner.service.plan_provider.PlanProvider, or a test's own."""

    async def plan(self, job: Job, *, seconds: float | None) -> PlanAnswer:
        """The plan. Raises DeadlineError after `seconds`, and what planning raises."""
        ...

    async def run(self, asked: RunRequest, *, seconds: float | None, keep: bool) -> PlanAnswer | PlanPending:
        """A program's run. With `keep` it goes on, and is pending, after `seconds`; else DeadlineError."""
        ...

    def bound(self, job: Job) -> Bound:
        """What the job takes at least, without a plan. Called in a thread."""
        ...

    async def check(self, job: Job, *, seconds: float) -> PlanAnswer | PlanPending:
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
class Dependencies:
    """Dependencies shared by a replica's endpoints."""

    settings: Settings
    history: History
    plan_provider: Plans
    validations: Any = None
    """The handle of the deployment that measures on the cluster's GPUs; None where there is none."""
    searches: Any = None
    """The handle of the deployment that searches; None where there is none."""
    torches: TorchVersions = ONLY_OWN
    counters: Counts | None = None
    tracers_ready: Callable[[], Awaitable[None]] | None = None
    """Returns when tracing processes can be reached, and raises where they cannot."""


def dependencies_of(request: Request) -> Dependencies:
    """The dependencies of the replica that answers: `Depends(dependencies_of)` in an endpoint."""
    found: Dependencies = request.app.state.dependencies
    return found
