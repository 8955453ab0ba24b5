"""What comes back from the tracing processes. Refusals travel as values: an exception would arrive wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.errors import PlannerError
from planner.service.ids import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan, as the JSON text of the contract."""

    text: str
    stored: bool = True
    """Whether the history has it; False: it could not be reached, and the plan is known to its caller only."""
    from_store: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The job cannot be planned, or not now."""

    error: PlannerError


Outcome = Made | Refused


@dataclass(frozen=True, slots=True)
class Traced:
    """What one rank did."""

    text: str
    """The trace as JSON text."""
    further: tuple[int, ...] = ()
    """Ranks of its class that have to be traced as well, for their part of what is split is of another size."""


class Tracing(Protocol):
    """Whoever makes plans: the one that all replicas share, or in its place whatever a test needs."""

    async def make(self, order: Order, seconds: float | None, keep: bool) -> Outcome | None:
        """The plan; None if it is not ready after `seconds`.

        With `keep` the work goes on when nobody waits any more; without, it ends then, also if this is cancelled.
        """
