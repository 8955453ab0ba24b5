"""`python -m planner.validation.here JOB.yaml`: a validation on this machine's GPUs, through a Ray of its own.

The same code as behind POST /v1/validations, from the choice of the place to the comparison; nothing is stored. With
RAY_ADDRESS it goes to that cluster instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from planner.comparing.text import render
from planner.errors import PlannerError
from planner.spec import catalog
from planner.spec.job import Gpu, Job
from planner.spec.loading import load_job
from planner.tracing.isolated import Limits
from planner.units import GIB
from planner.validation import cluster, conduct
from planner.validation.conduct import Conditions
from planner.validation.request import Device, Mode, Request, request_of
from planner.validation.side_by_side import Result

_OBJECT_STORE_BYTES = 200 * 10**6


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if it was measured (even if memory ran out), 2 if it cannot be, with the reason on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        job = _job(arguments)
        request = request_of(_body(arguments), job)
        result = _validated(request, arguments)
    except PlannerError as error:
        print(error, file=sys.stderr)
        return 2
    print(_shown(result, as_json=arguments.format == "json"), end="")
    if result.problem:
        print(result.problem, file=sys.stderr)
    return 2 if result.problem else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m planner.validation.here", description="Measures a job's step on this machine, beside its plan."
    )
    parser.add_argument("job", type=Path, help="a spec in YAML, or a bundle")
    parser.add_argument("--gpu", default="", help="the GPU of this machine, by its name in the catalog, for the job's")
    parser.add_argument("--mode", default=Mode.AUTO.value, choices=[each.value for each in Mode])
    parser.add_argument("--device", default=Device.CUDA.value, choices=[each.value for each in Device])
    parser.add_argument("--ranks", default="", help="such as 0,8 (default: one of each rank class)")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest that one step may take")
    parser.add_argument("--rehearse", action="store_true", help="pretend the GPUs, and run the step on the CPU")
    parser.add_argument("--format", default="text", choices=["text", "json"])
    return parser


def _job(arguments: argparse.Namespace) -> Job:
    job = load_job(arguments.job)
    if not arguments.gpu:
        return job
    known = catalog.look_up(arguments.gpu, place="--gpu")
    gpu = Gpu(name=known.name, total_bytes=known.total_bytes, arch=known.arch)
    return dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, gpu=gpu))


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"mode": arguments.mode, "device": arguments.device}
    if arguments.ranks:
        parts = arguments.ranks.split(",")
        body["ranks"] = [int(part) if part.strip().isdigit() else part for part in parts]
    return body


def _validated(request: Request, arguments: argparse.Namespace) -> Result:
    limits = Limits(seconds=arguments.seconds, memory_bytes=64 * GIB)
    conditions = Conditions(
        tracing=limits, measuring=limits, wait_seconds=arguments.seconds, rehearsal=arguments.rehearse
    )
    ray.init(**_options(request, arguments.rehearse))
    try:
        conduct.hide_gpus()
        print(f"here: {cluster.shown(conduct.nodes())}; predicting, then measuring", file=sys.stderr)
        return conduct.validate(request, conditions, running=lambda: print("measuring", file=sys.stderr))
    finally:
        ray.shutdown()


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
    return {**local, "labels": {cluster.LABEL: kind}} if kind else local


def _kind(gpu: Gpu) -> str:
    """What Ray calls the job's GPU; for one without a name, any of its architecture."""
    known = [each for each in catalog.gpus().values() if (each.name == gpu.name if gpu.name else each.arch == gpu.arch)]
    return next((alias for each in known for alias in each.aliases), "")


def _shown(result: Result, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(result.document, indent=2) + "\n"
    ranks = result.document["ranks"]
    parts = [
        f"rank {rank['rank']}, peers {rank['peers']}\n{render(comparison)}"
        for rank, comparison in zip(ranks, result.comparisons, strict=True)
    ]
    error = "none can be told" if result.error_percent is None else f"{result.error_percent:.2f} %"
    return "\n".join(parts) + f"\nerror of {result.document['error_of']} bytes, the worst rank's: {error}\n"


if __name__ == "__main__":
    sys.exit(main())
