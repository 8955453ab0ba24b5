"""Computes the ids of a job before it is planned: of its trace and, under a calibration, of its plan."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

from planner.calibration.interval import Calibration
from planner.job.json_text import canonical_json
from planner.job.schema import Job
from planner.planning import identity
from planner.planning.program_ranks import choose_ranks
from planner.running.walled_program import WalledProgram
from planner.runtime.limits import Limits
from planner.service.run_requests import RunRequest
from planner.service.user_code import program_limits, walled_program
from planner.settings import Settings

START_SECONDS = 30.0
"""For each rank of a program: a process of its own has to start, and to be ended."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A program to be run under a calibration, with the names that it will have."""

    request: RunRequest
    walled: WalledProgram
    limits: Limits
    """Of one rank."""
    calibration: Calibration
    trace_id: str
    plan_id: str
    runs_code: bool = True

    @property
    def seconds(self) -> float:
        """What its ranks may take together."""
        ranks = len(choose_ranks(self.request.ranks, self.request.line.world_size))
        return ranks * (self.limits.seconds + START_SECONDS)


def run_order_of(request: RunRequest, calibration: Calibration, settings: Settings) -> RunOrder:
    """The program as it is ordered. What lies in a folder may be another program tomorrow, under the same name."""
    limits = program_limits(settings)
    parts = {
        "files": hashlib.sha256(request.tarball).hexdigest() if request.tarball else request.folder,
        "command": list(request.command),
        "gpu": asdict(request.gpu),
        "ranks": request.ranks,
        "steps": request.steps,
        "strict": request.strict,
        "limits": asdict(limits),
        "readable": settings.program_data,
        **identity.run_scope(),
        **({"host_memory": request.host_memory_bytes} if request.host_memory_bytes else {}),
    }
    trace_id = "run-" + hashlib.sha256(canonical_json(parts).encode()).hexdigest()
    plan_id = identity.plan_id(trace_id, identity.provenance_of(calibration))
    return RunOrder(
        request=request,
        walled=walled_program(request, settings),
        limits=limits,
        calibration=calibration,
        trace_id=trace_id,
        plan_id=plan_id,
    )


def order_of(job: Job, calibration: Calibration) -> Order:
    """The job as it is ordered; no time is lost on it: a fifth of a millisecond. Metadata are no part of the names."""
    trace_id = identity.trace_id_of(job)
    plan_id = identity.plan_id(trace_id, identity.provenance_of(calibration))
    return Order(job=job, calibration=calibration, trace_id=trace_id, plan_id=plan_id)
