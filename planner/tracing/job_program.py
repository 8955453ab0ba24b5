"""Traces a job's rank by running the program that its spec is (`planner.programs`), in this process."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn
from unittest import mock

from planner import cuda_on_paper
from planner.errors import PlannerError, ProgramError, TraceError
from planner.job.launching.launched_ranks import rank_variables
from planner.job.sampled_runs import draw_batches
from planner.job.schema import Job, Lengths
from planner.paper.native_records import DoesNotFoldError
from planner.programs.launching import launch_line
from planner.runtime.garbage_collection import look_at_new_objects
from planner.tracing.batch_sizes import LARGEST
from planner.tracing.program import micro_batches
from planner.tracing.program.assumptions import About
from planner.tracing.program.look_ahead import rounds_to_give
from planner.tracing.program.on_paper import Endings, run_program  # before torch
from planner.tracing.program.rank_orders import Gpu, ProgramOrder, RankRun
from planner.tracing.rank_trace import Trace
from planner.tracing.step_errors import untraceable
from planner.training.log_levels import quiet_libraries
from planner.training.wraps import context_parallel
from planner.upstream import torch_releases

from planner.training import absent_peers  # isort: skip

import torch  # isort: skip
import torch.distributed as dist  # isort: skip
from torch._subclasses.fake_tensor import FakeTensorMode  # isort: skip

_SETTLED = 3
"""Micro-batches after which each does what the one before it did: DDP's reducer rebuilds its buckets in the second, and
with a static graph takes its map of used parameters in the third (torch 2.13, torch/csrc/distributed/c10d/
reducer.cpp)."""
_UNLIKE_MICRO_BATCHES = 3
"""Of an accumulation the first, in which gradients are born, one in its middle, and the last, which may reduce."""
_MOST_ITERATIONS = 10
"""RAdam's step takes other memory from the sixth on, when its rectification begins."""
_ROOMY_BYTES = 1 << 40
"""Of a GPU that is never full: what a rank allocates does not depend on what fits."""
_TO_ITS_END = 1 << 40
"""Steps that no program comes to: a spec says how many it makes."""


def trace(job: Job, rank: int = 0, target: str = "", *, shortened: bool = True) -> Trace:
    """What `rank` does on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    `shortened`: of long accumulations the parts are run from which the others follow, where they do.
    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that cannot be
    traced, with its module and operator.
    """
    began = time.perf_counter()
    job, steps = _choose_steps(job)
    try:
        result = _trace(job, rank, target, steps, shortened=shortened)
    except DoesNotFoldError:
        result = _trace(job, rank, target, steps, shortened=False)
    return replace(result, seconds=time.perf_counter() - began)


def _trace(job: Job, rank: int, target: str, steps: int, *, shortened: bool) -> Trace:
    """`steps`: that are run of batches that differ in length, which are drawn ahead; 0: all."""
    run_job, left_out = _shorten(job) if shortened else (job, 0)
    cuda_on_paper.take_any_gpu(target or job.cluster.gpu.target)
    context_parallel.require_release(job, target or job.cluster.gpu.target)
    if job.parallel.ep.degree > 1:
        torch_releases.require("expert parallelism", place="parallel.ep")  # before its model is built
    order = ProgramOrder(
        line=launch_line(run_job, *(["--steps", str(steps)] if steps else [])),
        rank=rank,
        gpu=Gpu(product="", arch=job.cluster.gpu.arch, total_bytes=_ROOMY_BYTES, name=job.cluster.gpu.name),
        target=target or job.cluster.gpu.target,
        torch=job.software.torch,
        steps=_TO_ITS_END,
        batches=len(draw_batches(job.train)) if steps else 0,
        strict=True,
        is_of_a_spec=True,
        micro_batches=run_job.train.gradient_accumulation_steps,
        micro_batches_left_out=left_out,
        folds_pipelines=shortened and job.parallel.pp.degree > 1,
    )
    runs: list[RankRun] = []
    with _as_started(order), quiet_libraries():
        try:
            run_program(order, Endings(runs.append, _refuse))  # type: ignore[arg-type]
        except ProgramError as error:
            if job.model.factory:  # code of the user's has ended the process before it trained
                raise SystemExit(0) from error
            raise
        except (PlannerError, MemoryError, DoesNotFoldError):
            raise
        except Exception as error:
            raise untraceable(error) from error
    (run,) = runs
    if steps:
        _require_longest(run)
    return run.trace


def _shorten(job: Job) -> tuple[Job, int]:
    """The job with fewer iterations, and fewer micro-batches to each, where those say what the others do; and how many
    fewer micro-batches."""
    train, replicate = job.train, job.parallel.dp_replicate
    if not (train.eval or train.checkpoint_save or train.lengths):
        train = replace(train, iterations=min(train.iterations, _MOST_ITERATIONS))
        job = replace(job, train=train)
    remembers = replicate.degree > 1 and not replicate.no_sync
    run = micro_batches.FEWEST + (_SETTLED - 1 if remembers else 0)
    left_out = train.gradient_accumulation_steps - run
    if left_out < 1 or train.lengths or job.parallel.pp.degree > 1:
        return job, 0
    return replace(job, train=replace(train, gradient_accumulation_steps=run)), left_out


def _choose_steps(job: Job) -> tuple[Job, int]:
    """The job with no more micro-batches to a step than do other things, and how many of its steps say what all of them
    do, among them those of the longest batches; 0: all are run, as they are."""
    train = job.train
    if train.lengths is None:
        return job, 0
    batches, micro_batches = draw_batches(train), min(train.gradient_accumulation_steps, _UNLIKE_MICRO_BATCHES)
    sizes = len({*batches})
    steps = rounds_to_give(micro_batches, sizes)
    if len(batches) <= steps * micro_batches or sizes == 1:
        return job, 0
    batches += (train.sequence_length,) * (-len(batches) % micro_batches)  # whole steps of fewer
    train = replace(
        train,
        lengths=Lengths(batches=batches, pad_to_multiple_of=train.lengths.pad_to_multiple_of),
        gradient_accumulation_steps=micro_batches,
        eval=train.eval and replace(train.eval, every=steps),
        checkpoint_save=train.checkpoint_save and replace(train.checkpoint_save, every=steps),
    )
    return replace(job, train=train), steps


def _require_longest(run: RankRun) -> None:
    """Raises TraceError where the longest batch was not among the steps that were run."""
    longest = [batch for loader in run.trace.drawn for batch in loader.tried if batch.name == LARGEST]
    if not longest or not all(batch.iteration for batch in longest):
        reasons = (each.text for each in run.assumptions if each.about is About.HOST and "drawn ahead" in each.text)
        raise TraceError(
            f"the longest batch could not be run early: {'; '.join(reasons) or 'it was not drawn'}",
            remedy="give train.sequence_length as one length",
            place="train.lengths",
        )


def _refuse(error: PlannerError) -> NoReturn:
    raise error


@contextmanager
def _as_started(order: ProgramOrder) -> Iterator[None]:
    """Inside, this process is as the launcher would start the rank's; afterwards as it was."""
    arguments, folders, threshold = sys.argv[:], sys.path[:], gc.get_threshold()
    variables = rank_variables(order.line, order.rank)
    # What torch keeps of tensors without memory on `cuda` is on the device that was the current one then.
    forget = FakeTensorMode.cache_clear if variables["LOCAL_RANK"] != "0" else lambda: None
    with mock.patch.dict(os.environ, variables), look_at_new_objects():
        forget()
        try:
            yield
        finally:
            forget()
            if dist.is_initialized():
                dist.destroy_process_group()
                absent_peers.forget()
            torch.cuda.set_device(0)
            sys.argv[:], sys.path[:] = arguments, folders
            gc.set_threshold(*threshold)
            pinned = getattr(torch.cuda, "host_memory_stats", None)  # which torch 2.6 has not
            if pinned is None or pinned().get("active_bytes.current"):
                gc.collect()  # a model in a cycle holds pinned tensors, whose blocks the next program would take again
            torch._C._host_emptyCache()
