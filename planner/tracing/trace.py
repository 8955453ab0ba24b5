"""Traces a job's rank in this process, which must have a paper GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from planner import paper  # before torch
from planner.errors import PlannerError
from planner.facts.folder import workspace_table
from planner.job.length_draws import as_traced
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.long_run.series import UnlikePartsError
from planner.paper.repetition import DoesNotFoldError
from planner.tracing import (
    absent_host,
    compiled_on_paper,
    deepspeed_on_paper,
    engine,
    garbage_collection,
    quiet_libraries,
    shortened_phases,
    trace_failures,
)
from planner.tracing.traced import Trace
from planner.training import absent_peers, dtensor_speed, shard_chunks, step
from planner.training.folding import NoExampleError
from planner.training.wraps import deepspeed_engine


def trace(job: Job, rank: int = 0, target: str = "", *, folded: bool = True) -> Trace:
    """Run the step of `rank` on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    Of a job with `train.lengths` it runs the steps from which the others follow (`planner.job.length_draws`).
    `folded`: repetition is run once and written out, where it is one; the events are those of running it all.
    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that
    cannot be traced, with its module and operator.
    """
    began, job = time.perf_counter(), compiled_on_paper.as_planned(job)
    if job.train.lengths is not None:
        job = as_traced(job)
    with garbage_collection.pause_collection(), quiet_libraries.libraries():
        try:
            found = _trace(job, rank, target, folded=folded)
        except (DoesNotFoldError, NoExampleError, UnlikePartsError):
            found = _trace(job, rank, target, folded=False)
        if job.post_training is not None:
            found = replace(found, engine=engine.engine_figures(job, target))
    return replace(found, seconds=time.perf_counter() - began)


def _trace(job: Job, rank: int, target: str, *, folded: bool) -> Trace:
    world_size = Mesh.of(job.parallel).world_size
    by_engine = deepspeed_engine.uses_engine(job)
    arch, gpus = target or job.cluster.gpu.arch, job.cluster.gpus_per_node
    known = workspace_table(job.cluster.gpu.name, job.software.torch)
    software = job.software
    on_paper = paper.gpu(arch, gpus, cuda=software.cuda, torch_version=software.torch, waits=by_engine, known=known)
    with on_paper as gpu:
        gpu.recorder.folds = folded
        try:
            quick, chunks = dtensor_speed.once_for_all_parameters(), shard_chunks.made_when_asked_for()
            with (
                absent_peers.join(rank, world_size),
                absent_host.left_out(pins_gradients=_pins_gradients(job)) as host,
                deepspeed_on_paper.planned_for(job, arch, gpu.recorder, host) if by_engine else nullcontext(),
                quick,
                chunks,
                compiled_on_paper.compiling(job, arch, gpu.recorder) as compiled,
            ):
                gpu.recorder.host = host.ledger
                outcome = step.run(job, gpu.device, gpu.recorder, rank=rank, host=host)
                buckets, dims, parts = _account(outcome.ddp), outcome.sharded_dims, outcome.parts
                events, repeats = gpu.recorder.folded_events()
                if folded:
                    events, repeats = shortened_phases.write_out_evaluations(job, events, repeats)
                unknown, counted = gpu.unknown_workspaces(), gpu.counted_workspaces()
                margin = gpu.workspace_margin_bytes()
                assumed = compiled.assumed()
                on_host, host_assumed = tuple(host.ledger.events), tuple(sorted(host.assumed))
                if by_engine:
                    deepspeed_engine.release(outcome.model, gpu.device)
                del outcome
        except (PlannerError, DoesNotFoldError, NoExampleError, UnlikePartsError, MemoryError):
            raise
        except Exception as error:
            raise trace_failures.untraceable(error, compiles=job.train.compile is not None) from error
    return Trace(
        tuple(events), buckets, unknown, counted, margin, dims, parts=parts, repeats=tuple(repeats), assumed=assumed,
        host=on_host, host_assumed=host_assumed,
    )  # fmt: skip


def _pins_gradients(job: Job) -> bool:
    return job.parallel.dp_shard.offload == "cpu" and not job.train.optimizer_in_backward


def _account(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Without its clock: a trace of the same job is the same at any time."""
    plain = {key: value for key, value in logged.items() if isinstance(value, str | int | float | bool)}
    return {key: value for key, value in plain.items() if "_time" not in key}
