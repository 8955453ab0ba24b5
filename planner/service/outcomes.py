"""Results of the tracing processes. Refusals are values: an exception would arrive wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from planner.errors import PlannerError
from planner.report.program_statement import ProgramStatement
from planner.report.statement import Plan
from planner.runtime.limits import LimitExceededError
from planner.service.orders import Order, RunOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade:
    """A plan, as the JSON text of the contract."""

    text: str
    stored: bool = True
    """Whether the history has it; False: it could not be reached, and the plan is known to its caller only."""
    from_store: bool = False


@dataclass(frozen=True, slots=True)
class PlanRefused:
    """The job cannot be planned, or not now."""

    error: PlannerError


Outcome = PlanMade | PlanRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What a worker brought to an end before it was done, or was ended for exceeding a limit."""

    plan: Plan | None = None
    """With advice, if the job exceeds its GPUs and there was time for it."""
    run: ProgramStatement | None = None
    """In place of a plan, of a program."""
    traces: Mapping[int, str] = field(default_factory=dict)
    """Traces as text, by representative."""
    further: tuple[int, ...] = ()
    """Ranks of a traced class that have to be traced as well: their part of what is split is of another size."""
    exceeded: LimitExceededError | None = None


class PlanMaker(Protocol):
    """Whoever makes plans: the one that all replicas share, or in its place whatever a test needs."""

    async def make(self, order: Order | RunOrder, seconds: float | None, keep: bool) -> Outcome | None:
        """The plan; None if it is not ready after `seconds`.

        With `keep` the work goes on when nobody waits any more; without, it ends then, also if this is cancelled.
        """
