"""What a search looks for the best of, as numbers of which the smaller is the better."""

from __future__ import annotations

from enum import StrEnum

from planner.bound.lower_bound import Bound
from planner.errors import SpecError
from planner.job.nearest import did_you_mean
from planner.job.schema import Job
from planner.searching.exact import Exact
from planner.searching.roofline import Cost, cost_of


class Objective(StrEnum):
    """COST ranks by the roofline, MEMORY by the device bytes of the fullest rank, HEADROOM by what is left of it."""

    COST = "cost"
    MEMORY = "memory"
    HEADROOM = "headroom"

    def least(self, cost: Cost | None, bound: Bound) -> float:
        """What no plan of a candidate gets below."""
        if self is Objective.COST:
            return 0.0 if cost is None else cost.per_token
        return bound.least_bytes if self is Objective.MEMORY else bound.least_bytes - bound.capacity_bytes

    def of(self, cost: Cost | None, exact: Exact) -> float:
        """What a plan says."""
        if self is Objective.COST:
            return 0.0 if cost is None else cost.per_token
        return exact.device_bytes if self is Objective.MEMORY else -exact.headroom_bytes


def objective_of(written: str, place: str = "--objective") -> Objective:
    """Raises SpecError with the nearest name."""
    try:
        return Objective(written)
    except ValueError:
        raise SpecError(
            f"there is no objective {written[:80]!a}",
            allowed=", ".join(Objective),
            remedy=did_you_mean(written, Objective) or "cost is the roofline's GPU time of a token",
            place=place,
        ) from None


def refuse_inapplicable(objective: Objective, job: Job, place: str = "--objective") -> None:
    """Raises SpecError for an objective that says nothing of this job."""
    if objective is Objective.COST and cost_of(job) is None:
        known = (
            "the speeds of its GPU are not known" if job.cluster.gpu.name == "" else "the model's sizes are not known"
        )
        raise SpecError(
            f"the objective cost does not apply: {known}, and the roofline ranks by them",
            allowed="memory, headroom",
            remedy="rank by memory: --objective memory",
            place=place,
        )
