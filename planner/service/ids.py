"""Computes the ids of a job before it is planned: of its trace and, under a calibration, of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from planner.calibration.interval import Calibration
from planner.job.schema import Job
from planner.planning import identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to be planned under a calibration, with the names that its trace and its plan will have."""

    job: Job
    calibration: Calibration
    trace_id: str
    plan_id: str

    @property
    def runs_code(self) -> bool:
        """Whether the job brings code, which may be other code tomorrow under the same name."""
        return bool(self.job.model.factory)


def order_of(job: Job, calibration: Calibration) -> Order:
    """The job as it is ordered; no time is lost on it: a fifth of a millisecond. Metadata are no part of the names."""
    trace_id = identity.trace_id_of(job)
    plan_id = identity.plan_id(trace_id, identity.provenance_of(calibration))
    return Order(job=job, calibration=calibration, trace_id=trace_id, plan_id=plan_id)
