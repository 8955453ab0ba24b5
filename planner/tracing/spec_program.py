"""Traces a job's rank by running the program that its spec is (`planner.programs`), in this process."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn
from unittest import mock

from planner import cuda_on_paper
from planner.errors import PlannerError, ProgramError
from planner.job import deepspeed_config, loading
from planner.job.launching.line import Launcher, LaunchLine, rank_variables
from planner.job.schema import Job
from planner.tracing.program.on_paper import Endings, run_program  # before torch
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.rank_trace import Trace
from planner.tracing.spec import failures, step_trace
from planner.upstream import checking

from planner.training import absent_peers  # isort: skip

import torch  # isort: skip
import torch.distributed as dist  # isort: skip

_ROOMY_BYTES = 1 << 40
"""Of a GPU that is never full: what a rank allocates does not depend on what fits."""
_MOST_MICRO_BATCHES = 4
"""Of a step, each of which is run."""
_TO_ITS_END = 1 << 40
"""Steps that no program comes to: a spec says how many it makes."""


def trace_rank(job: Job, rank: int = 0, target: str = "") -> Trace:
    """What `rank` does, by the job's program, or step by step where it has none. Raises what these two raise."""
    return (trace if has_program(job) else step_trace.trace)(job, rank, target)


def has_program(job: Job) -> bool:
    """Whether the job is run as a program: without what only a step made by hand does so far."""
    train, parallel = job.train, job.parallel
    by_hand = (
        job.post_training,
        train.compile,
        train.lengths,
        train.eval,
        train.checkpoint_load,
        train.checkpoint_save,
        train.activation_offload,
        train.optimizer_in_backward,
        train.gradient_accumulation_steps > _MOST_MICRO_BATCHES,
        parallel.pp.degree > 1,
        parallel.ep.degree > 1,
        parallel.deepspeed and ((zero := deepspeed_config.zero_of(job)).offload or zero.offload_param),
        parallel.dp_shard.offload,
        parallel.dp_shard.kind == "fsdp1" and parallel.dp_shard.degree > 1,
    )
    return not any(by_hand)


def trace(job: Job, rank: int = 0, target: str = "") -> Trace:
    """What `rank` does on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that cannot be
    traced, with its module and operator.
    """
    began = time.perf_counter()
    cuda_on_paper.take_any_gpu(target or job.cluster.gpu.target)
    total_bytes = _ROOMY_BYTES
    if job.parallel.deepspeed:
        checking.enforce("deepspeed")
        total_bytes = job.cluster.capacity_bytes or total_bytes  # it asks whether parameters can be flattened there
    order = ProgramOrder(
        line=_launch_line(job),
        rank=rank,
        gpu=Gpu(product="", arch=job.cluster.gpu.arch, total_bytes=total_bytes, name=job.cluster.gpu.name),
        target=target or job.cluster.gpu.target,
        torch=job.software.torch,
        steps=_TO_ITS_END,
        batches=0,
        has_made_up_data=True,
    )
    runs: list[RankRun] = []
    with _as_started(order), step_trace.quiet_libraries():
        try:
            run_program(order, Endings(runs.append, _refuse))  # type: ignore[arg-type]
        except ProgramError as error:
            if job.model.factory:  # code of the user's has ended the process before it trained
                raise SystemExit(0) from error
            raise
        except (PlannerError, MemoryError):
            raise
        except Exception as error:
            raise failures.untraceable(error) from error
    return replace(runs[0].trace, seconds=time.perf_counter() - began)


def _launch_line(job: Job) -> LaunchLine:
    """How the program of a spec is started on the job's nodes."""
    return LaunchLine(
        launcher=Launcher.TORCHRUN,
        program="planner.programs.train",
        is_module=True,
        arguments=(json.dumps(loading.bundle(job)),),
        nodes=job.cluster.nodes,
        processes_per_node=job.cluster.gpus_per_node,
    )


def _refuse(error: PlannerError) -> NoReturn:
    raise error


@contextmanager
def _as_started(order: ProgramOrder) -> Iterator[None]:
    """Inside, this process is as the launcher would start the rank's; afterwards as it was."""
    arguments, folders, threshold = sys.argv[:], sys.path[:], gc.get_threshold()
    with mock.patch.dict(os.environ, rank_variables(order.line, order.rank)):
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
                absent_peers.forget()
            torch.cuda.set_device(0)
            sys.argv[:], sys.path[:] = arguments, folders
            gc.set_threshold(*threshold)
            gc.unfreeze()
