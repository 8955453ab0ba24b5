"""Validates on this machine's GPUs through a Ray of its own: `planner validate`.

The same code as behind POST /v1/validations, from the choice of the place to the comparison; nothing is stored. With
RAY_ADDRESS it goes to that cluster instead.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray

from planner.comparing.comparison_text import render
from planner.hardware import catalog
from planner.job.loading import job_on_gpu
from planner.job.schema import Gpu, Job
from planner.runtime.limits import Limits
from planner.tracing.isolation import Isolation
from planner.units import GIB
from planner.validation import placement, validation_run
from planner.validation.rank_comparison import Result
from planner.validation.request import Device, Mode, Request
from planner.validation.validation_run import Conditions

_OBJECT_STORE_BYTES = 200 * 10**6


def job_on_this_gpu(job: Job, gpu: str) -> Job:
    """The job on the GPU of that name; on its own if the name is empty. Raises SpecError."""
    return job_on_gpu(job, gpu, place="--gpu") if gpu else job


def validate(request: Request, *, seconds: float, rehearsal: bool) -> Result:
    """Predicts and measures on this machine; a rehearsal pretends the GPUs and runs the step on the CPU.

    `seconds` is the longest that one step may take. Raises PlannerError for what cannot be measured here.
    """
    limits = Limits(seconds=seconds, memory_bytes=64 * GIB)
    conditions = Conditions(
        isolation=Isolation(limits=limits), measuring=limits, wait_seconds=seconds, rehearsal=rehearsal
    )
    ray.init(**_options(request, rehearsal))
    try:
        validation_run.hide_gpus()
        print(f"here: {placement.format_nodes(validation_run.nodes())}; predicting, then measuring", file=sys.stderr)
        return validation_run.validate(request, conditions, running=lambda: print("measuring", file=sys.stderr))
    finally:
        ray.shutdown()


def format_result(result: Result, *, as_json: bool) -> str:
    """The result as it is printed."""
    if as_json:
        return json.dumps(result.document, indent=2) + "\n"
    ranks = result.document["ranks"]
    parts = [
        f"rank {rank['rank']}, peers {rank['peers']}\n{render(comparison)}"
        for rank, comparison in zip(ranks, result.comparisons, strict=True)
    ]
    error = "none can be told" if result.error_percent is None else f"{result.error_percent:.2f} %"
    return "\n".join(parts) + f"\nerror of {result.document['error_of']} bytes, the worst rank's: {error}\n"


def _options(request: Request, rehearsal: bool) -> dict[str, Any]:
    common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if os.environ.get("RAY_ADDRESS"):
        return common
    local = {**common, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    processes = request.world_size if request.mode is not Mode.ABSENT_PEERS else 1
    if request.device is Device.CPU or rehearsal:
        local["num_cpus"] = max(os.cpu_count() or 1, min(processes, 64))
    if rehearsal:
        local["num_gpus"] = min(processes, 64)
    kind = _kind(request.job.cluster.gpu)
    # Ray does not know every GPU by name. Whether it is the job's is seen when it has been measured.
    return {**local, "labels": {placement.LABEL: kind}} if kind else local


def _kind(gpu: Gpu) -> str:
    """What Ray calls the job's GPU; for one without a name, any of its architecture."""
    known = [each for each in catalog.gpus().values() if (each.name == gpu.name if gpu.name else each.arch == gpu.arch)]
    return next((alias for each in known for alias in each.aliases), "")
