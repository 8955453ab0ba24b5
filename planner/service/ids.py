"""Computes the ids of a job before it is planned: of its trace and, under a calibration, of its plan."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from planner.calibration.interval import Calibration
from planner.job.json_text import canonical_json
from planner.job.schema import Job
from planner.planning import identity
from planner.service.orders import Order, RunOrder, RunRequest
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.service.user_code import program_limits, walled_program
from planner.settings import Settings


def run_order_of(
    request: RunRequest, calibration: Calibration, settings: Settings, torches: TorchVersions = ONLY_OWN
) -> RunOrder:
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
        **identity.run_scope(torches.nearest(request.torch).versions),
        **({"host_memory": request.host_memory_bytes} if request.host_memory_bytes else {}),
        **({"runs torch": request.torch} if request.torch else {}),
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


def order_of(job: Job, calibration: Calibration, torches: TorchVersions = ONLY_OWN) -> Order:
    """The job as it is ordered; no time is lost on it: a fifth of a millisecond. Metadata are no part of the names."""
    trace_id = identity.trace_id_of(job, torches.nearest(job.software.torch).versions)
    plan_id = identity.plan_id(trace_id, identity.provenance_of(calibration))
    return Order(job=job, calibration=calibration, trace_id=trace_id, plan_id=plan_id)
