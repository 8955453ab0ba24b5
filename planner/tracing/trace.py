"""A trace made in this process, which has to have a paper GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from planner import paper  # before torch
from planner.errors import PlannerError
from planner.layout.mesh import Mesh
from planner.paper.splices import DoesNotFoldError
from planner.paper.untouched_host import UntouchedHost
from planner.spec.job import Job
from planner.tracing import backpressure, collector, failures, host_side
from planner.tracing.traced import Trace
from planner.training import absent_peers, dtensor_speed, step
from planner.training.folding import CannotBeToldError
from planner.training.wraps import deepspeed_engine

_MOST_GPUS = 120
"""The most that one process of torch can see (torch 2.13, c10/cuda/CUDAMacros.h)."""


def trace(job: Job, rank: int = 0, target: str = "", *, folded: bool = True) -> Trace:
    """Run the step of `rank` on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    `folded`: repetition is run once and written out, where it is one; the events are those of running it all.
    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that
    cannot be traced, with its module and operator.
    """
    began = time.perf_counter()
    with collector.off():
        try:
            found = _trace(job, rank, target, folded=folded)
        except (DoesNotFoldError, CannotBeToldError):
            found = _trace(job, rank, target, folded=False)
    return replace(found, seconds=time.perf_counter() - began)


def _trace(job: Job, rank: int, target: str, *, folded: bool) -> Trace:
    world_size = Mesh.of(job.parallel).world_size
    gpus = min(job.cluster.gpus_per_node, _MOST_GPUS)
    with paper.gpu(target or job.cluster.gpu.arch, gpus, cuda=job.software.cuda) as gpu:
        gpu.recorder.folds = folded
        try:
            waits = backpressure.told(job, gpu.recorder)
            host = UntouchedHost() if deepspeed_engine.chosen(job) else nullcontext()
            quick = dtensor_speed.once_for_all_parameters()
            with absent_peers.join(rank, world_size), host_side.left_out(), host, waits, quick:
                outcome = step.run(job, gpu.device, gpu.recorder, rank=rank)
                buckets, dims, parts = _account(outcome.ddp), outcome.sharded_dims, outcome.parts
                events = tuple(gpu.recorder.events())
                unknown = gpu.unknown_workspaces()
                del outcome
        except (PlannerError, DoesNotFoldError, CannotBeToldError):
            raise
        except Exception as error:
            raise failures.untraceable(error) from error
    return Trace(events, buckets, unknown, dims, parts=parts)


def _account(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Without its clock: a trace of the same job is the same at any time."""
    plain = {key: value for key, value in logged.items() if isinstance(value, str | int | float | bool)}
    return {key: value for key, value in plain.items() if "_time" not in key}
