"""Traces a job's rank in this process, which must have a paper GPU."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from planner import (
    paper,  # before torch
    upstream,
)
from planner.allocator.long_runs.series import Series, UnlikePartsError, write_out
from planner.errors import PlannerError, TraceError
from planner.events import Event, Phase, Repeat, write_out_repeats
from planner.hardware.facts import workspace_table
from planner.job.layout import Mesh
from planner.job.sampled_runs import as_traced, batches_on_device, shown_batches, shown_tokens
from planner.job.schema import Job
from planner.paper.compiled import triton_kernels
from planner.paper.host_memory import UntouchedHost
from planner.paper.recorder import Recorder
from planner.paper.repetition import DoesNotFoldError
from planner.paper.targets import target_of
from planner.tracing import garbage_collection
from planner.tracing.rank_trace import Trace
from planner.tracing.spec import engine, failures, host_work
from planner.tracing.spec.host_work import AbsentHost
from planner.training import absent_peers, dtensor_speed, step
from planner.training.folding import NoExampleError
from planner.training.wraps import deepspeed_engine
from planner.upstream import torch_releases


def trace(job: Job, rank: int = 0, target: str = "", *, folded: bool = True) -> Trace:
    """Run the step of `rank` on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    Of a job with `train.lengths` it runs the steps from which the others follow (`planner.job.sampled_runs`).
    `folded`: repetition is run once and written out, where it is one; the events are those of running it all.
    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that
    cannot be traced, with its module and operator.
    """
    began, job = time.perf_counter(), as_planned(job)
    if job.train.lengths is not None:
        job = as_traced(job)
    with garbage_collection.pause_collection(), libraries():
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
    if job.parallel.cp.degree > 1 and target_of(arch).prefers_cudnn_attention(software.cuda, software.torch):
        torch_releases.require("context parallelism over cuDNN's attention", place="parallel.cp.degree")
    if job.parallel.ep.degree > 1:
        torch_releases.require("expert parallelism", place="parallel.ep")  # before its model is built
    on_paper = paper.gpu(arch, gpus, cuda=software.cuda, torch_version=software.torch, waits=by_engine, known=known)
    with on_paper as gpu:
        gpu.recorder.folds = folded
        try:
            quick, chunks = dtensor_speed.once_for_all_parameters(), dtensor_speed.made_when_asked_for()
            with (
                absent_peers.join(rank, world_size),
                host_work.left_out(pins_gradients=_pins_gradients(job)) as host,
                planned_for(job, arch, gpu.recorder, host) if by_engine else nullcontext(),
                quick,
                chunks,
                compiling(job, arch, gpu.recorder) as compiled,
            ):
                gpu.recorder.host = host.ledger
                outcome = step.run(job, gpu.device, gpu.recorder, rank=rank, host=host)
                buckets, dims, parts = _account(outcome.ddp), outcome.sharded_dims, outcome.parts
                events, repeats = gpu.recorder.folded_events()
                if folded:
                    events, repeats = write_out_evaluations(job, events, repeats)
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
            raise failures.untraceable(error, compiles=job.train.compile is not None) from error
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


class Account(Protocol):
    """What compiling can say of itself."""

    def assumed(self) -> tuple[str, ...]:
        """What was assumed where a GPU would have been timed, as sentences."""


class NothingCompiled:
    """The account of a step that is not compiled."""

    def assumed(self) -> tuple[str, ...]:
        return ()


def as_planned(job: Job) -> Job:
    """The job whose step is traced: without torch.compile where it is to be planned as the eager one."""
    if job.train.compile is None or job.train.compile.planned_as != "eager":
        return job
    return replace(job, train=replace(job.train, compile=None))


@contextmanager
def compiling(job: Job, arch: str, recorder: Recorder) -> Iterator[Account]:
    """Inside, torch.compile compiles where the job asks for it.

    Raises TraceError for what cannot be compiled, and for a step in which nothing was compiled: a plan is never that of
    the eager step instead.
    """
    if job.train.compile is None:
        yield NothingCompiled()
        return
    # Whoever compiles nothing does not pay for the import of Dynamo and Inductor.
    from planner.paper import compiled

    with compiled.enable(arch, recorder, as_asked=True) as account:
        yield account
        if not account.graphs():
            raise TraceError(
                f"torch.compile captured nothing of the step ({', '.join(job.train.compile.scope)})",
                allowed="a step of which Dynamo captures graphs",
                remedy="delete it to plan the eager step",
                place="train.compile",
            )


# Stage 3 gathers on one stream, computes on another and reduces on a third, and what it releases is marked as used by
# the others. So that the host does not run ahead and the allocator take ever more, it waits for the third last event
# of its gathers and of its reductions (0.19.8, partitioned_param_coordinator.py, stage3.py), unless they have passed
# already. On a paper GPU that waits (`paper.gpu`) none has: the host is as far ahead as DeepSpeed lets it be. A
# reduction waits for the computation before it; a gather does not, and is taken to be no faster than the computation.
_AVAILABLE = "deepspeed.accelerator.cuda_accelerator:CUDA_Accelerator.available_memory"


@contextmanager
def planned_for(job: Job, arch: str, recorder: Recorder, host: AbsentHost) -> Iterator[None]:
    """Inside, the engine finds as much memory free as the job's GPU would have, and writes nothing large on the host;
    its Triton kernels find a driver. Raises SpecError where DeepSpeed is not installed.
    """
    with triton_kernels.launched_as_nothing(target_of(arch)):
        deepspeed_engine.require("cuda", deepspeed_engine.stage_of(job))
        host.updates_in_place = True
        capacity = job.cluster.capacity_bytes
        left = recorder.requested_bytes()  # by another step of this process

        def available(_accelerator: Any, _device: Any = None) -> int:
            taken = recorder.requested_bytes() - left
            return capacity - taken if capacity > 0 else sys.maxsize  # of a GPU without a size

        memory = upstream.patch_targets("deepspeed memory", replaced={_AVAILABLE: available})
        with memory, UntouchedHost(host.ledger.pin):
            yield


_LIBRARIES = ("accelerate", "deepspeed", "DeepSpeed", "huggingface_hub", "peft", "torch", "transformers")


@contextmanager
def libraries() -> Iterator[None]:
    """Inside, Python's warnings are not shown, and of the libraries' own logs errors alone."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES] + list(_below())
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(max(logger.level, logging.ERROR))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _below() -> Iterator[logging.Logger]:
    """Loggers of the libraries' modules that have a level of their own, and would not ask the one above."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level and name.partition(".")[0] in _LIBRARIES:
            yield logger


def write_out_evaluations(job: Job, events: list[Event], repeats: list[Repeat]) -> tuple[list[Event], list[Repeat]]:
    """The events with every evaluation step and every generated token, and what still repeats of them.

    Raises UnlikePartsError where what was run does not tell what was not.
    """
    for series in _series_of(job):
        events, repeats = write_out(list(write_out_repeats(events, repeats)), series), []
    return events, repeats


def _series_of(job: Job) -> list[Series]:
    evaluation = job.train.eval
    if evaluation is None:
        return []
    found = []
    batches = shown_batches(evaluation)
    if any(each.alike for each in batches):
        found.append(Series(Phase.EVAL, batches, batches_on_device(evaluation)))
    if evaluation.generate is not None:
        new_tokens = evaluation.generate.max_new_tokens
        tokens = shown_tokens(new_tokens)
        if any(each.alike for each in tokens):
            found.append(Series(Phase.GENERATE, tokens, new_tokens - 1, before=1))
    return found
