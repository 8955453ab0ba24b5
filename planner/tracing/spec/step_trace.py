"""Traces a job's rank in this process, which must have a paper GPU."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from planner import (
    cuda_on_paper,
    paper,  # before torch
    upstream,
)
from planner.allocator.long_runs.series import Series, UnlikePartsError, write_out
from planner.errors import PlannerError, TraceError
from planner.events import Event, Phase, Repeat, write_out_repeats
from planner.hardware.architectures import find_architecture
from planner.job.layout import Mesh
from planner.job.sampled_runs import as_traced, batches_on_device, shown_batches, shown_tokens
from planner.job.schema import Job, Software
from planner.paper import library
from planner.paper.compiled import triton_kernels
from planner.paper.host_memory import UntouchedHost
from planner.paper.recorder import Recorder
from planner.paper.repetition import DoesNotFoldError
from planner.runtime.garbage_collection import pause_collection
from planner.tracing.pipeline_folding import PipelineFolding
from planner.tracing.rank_trace import Trace
from planner.tracing.spec import engine, failures, host_work
from planner.tracing.spec.host_work import AbsentHost
from planner.training import absent_peers, dtensor_speed, optimizers, step
from planner.training.log_levels import raise_log_levels
from planner.training.wraps import deepspeed_engine
from planner.training.wraps.ddp import leave_out_clock
from planner.upstream import checking, torch_releases

_ALWAYS_CUDNN = (2, 9)
"""Release of torch whose builds all have a cuDNN that attention prefers."""


def trace(job: Job, rank: int = 0, target: str = "", *, folded: bool = True) -> Trace:
    """Run the step of `rank` on a paper GPU whose kernels are those of `target` (default: the job's GPU).

    Of a job with `train.lengths` it runs the steps from which the others follow (`planner.job.sampled_runs`).
    `folded`: repetition is run once and written out, where it is one; the events are those of running it all.
    Raises SpecError for what the job names and torch or transformers do not know, TraceError for a step that
    cannot be traced, with its module and operator.
    """
    began = time.perf_counter()
    cuda_on_paper.take_any_gpu(target or job.cluster.gpu.target)  # libraries ask for it where they are imported
    if job.train.compile is not None and job.train.compile.planned_as == "eager":
        job = replace(job, train=replace(job.train, compile=None))
    if job.train.lengths is not None:
        job = as_traced(job)
    with pause_collection(), quiet_libraries():
        try:
            result = _trace(job, rank, target, folded=folded)
        except (DoesNotFoldError, UnlikePartsError):
            result = _trace(job, rank, target, folded=False)
        figures = None if job.post_training is None else engine.engine_figures(job, target)
    return replace(result, engine=figures, seconds=time.perf_counter() - began)


def _trace(job: Job, rank: int, target: str, *, folded: bool) -> Trace:
    by_engine = deepspeed_engine.uses_engine(job)
    arch, software = target or job.cluster.gpu.target, job.software
    if job.parallel.cp.degree > 1 and _prefers_cudnn_attention(arch, software):
        torch_releases.require("context parallelism over cuDNN's attention", place="parallel.cp.degree")
    if job.parallel.ep.degree > 1:
        torch_releases.require("expert parallelism", place="parallel.ep")  # before its model is built
    pins_gradients = job.parallel.dp_shard.offload == "cpu" and not job.train.optimizer_in_backward
    with paper.gpu(arch, torch_version=software.torch, waits=by_engine) as gpu, answer_memory_questions():
        gpu.recorder.folds = folded
        try:
            with (
                absent_peers.join(rank, Mesh.of(job.parallel).world_size),
                absent_peers.tell_collectives(gpu.recorder.hear_collective),
                host_work.leave_out_host_work(pins_gradients=pins_gradients) as host,
                _planned_for(job, gpu.recorder, host) if by_engine else nullcontext(),
                PipelineFolding(gpu.recorder).watch() if folded and job.parallel.pp.degree > 1 else nullcontext(),
                dtensor_speed.cache_mesh_work(),
                dtensor_speed.make_chunks_lazily(),
                _compiling(job, gpu.recorder) as assumed,
            ):
                gpu.recorder.host = host
                outcome = step.run(job, gpu.device, gpu.recorder, rank=rank, host=host, shortened=folded)
                events, repeats = gpu.recorder.folded_events()
                if folded:
                    events, repeats = write_out_evaluations(job, events, repeats)
                result = Trace(
                    tuple(events),
                    buckets=leave_out_clock(outcome.ddp),
                    unknown_workspaces=gpu.unknown_workspaces(),
                    other_kernels=gpu.other_kernels,
                    other_cudnn=cuda_on_paper.other_cudnn(),
                    sharded_dims=outcome.sharded_dims,
                    parts=outcome.parts,
                    adapted=outcome.adapted,
                    unified_bytes=optimizers.unified_bytes(outcome.optimizer),
                    repeats=tuple(repeats),
                    work=gpu.recorder.work(),
                    assumed=assumed(),
                    host=tuple(host.events),
                    host_assumed=tuple(sorted(host.assumed)),
                )
                if by_engine:
                    deepspeed_engine.release(outcome.model, gpu.device)
                del outcome
        except (PlannerError, DoesNotFoldError, UnlikePartsError, MemoryError):
            raise
        except Exception as error:
            raise failures.untraceable(error) from error
    return result


_BEGINS_TO_COMPILE = "torch._dynamo.callback:CompilationCallbackHandler.install_callbacks"


def _prefers_cudnn_attention(arch: str, software: Software) -> bool:
    """Data-centre Hopper and Blackwell do: under torch 2.9 where cuDNN is 9.9 or newer, as in all of its builds (10.3,
    of the B300, not yet); since 2.10 where it is newer than 9.15.0, in builds for CUDA 13. Before nothing does.

    Source: torch 2.9 and 2.13 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (check_prefer_cudnn_attention; the
    variable that it reads, TORCH_CUDNN_SDPA_PREFERRED or _DEPRIORITIZED, names the rule in a build).
    """
    capability = find_architecture(arch).capability
    if not arch.startswith("sm_") or capability[0] not in (9, 10):
        return False
    release = tuple(map(int, software.torch.split(".")[:2]))
    if release == _ALWAYS_CUDNN:
        return capability[1] == 0
    return release > _ALWAYS_CUDNN and int(software.cuda.partition(".")[0] or 0) >= 13


@contextmanager
def _compiling(job: Job, recorder: Recorder) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Inside, torch.compile compiles where the job asks for it; gives what tells what was assumed where a GPU would
    have been timed.

    Raises TraceError for what cannot be compiled, and for a step in which nothing was compiled: a plan is never that of
    the eager step instead.
    """
    if job.train.compile is None:
        with upstream.patch_targets("not compiled", replaced={_BEGINS_TO_COMPILE: failures.refuse_compiling}):
            yield tuple
        return
    # Only jobs that compile pay for the import of Dynamo and Inductor.
    from planner.paper import compiled

    with compiled.enable(recorder, as_asked=True) as account:
        yield account.assumed
        if not account.graphs():
            raise TraceError(
                f"torch.compile captured nothing of the step ({', '.join(job.train.compile.scope)})",
                allowed="a step of which Dynamo captures graphs",
                remedy="delete it to plan the eager step",
                place="train.compile",
            )


# Stage 3 waits for the third last event of its gathers and of its reductions (0.19.8, partitioned_param_coordinator.py,
# stage3.py), unless it has passed already. On a paper GPU that waits (`paper.gpu`) no event has when it is asked: the
# host waits, and the clock says for how long.
_AVAILABLE = "deepspeed.accelerator.cuda_accelerator:CUDA_Accelerator.available_memory"


@contextmanager
def _planned_for(job: Job, recorder: Recorder, host: AbsentHost) -> Iterator[None]:
    """Inside, the engine finds as much memory free as the job's GPU would have, and writes nothing large on the host;
    its Triton kernels find a driver. Raises TraceError for a DeepSpeed that planner does not know.
    """
    with triton_kernels.launched_as_nothing():
        deepspeed_engine.import_for("cuda")
        checking.enforce("deepspeed")
        capacity = job.cluster.capacity_bytes
        left = recorder.requested_bytes()  # by another step of this process

        def available(_accelerator: Any, _device: Any = None) -> int:
            taken = recorder.requested_bytes() - left
            return capacity - taken if capacity > 0 else sys.maxsize  # of a GPU without a size

        memory = upstream.patch_targets("deepspeed memory", replaced={_AVAILABLE: available})
        with memory, UntouchedHost(host.pin):
            yield


_OF_ANY_ACCELERATOR = ("memory_allocated", "max_memory_allocated")


def answer_memory_questions() -> AbstractContextManager[None]:
    """Inside, a rank's device is the only one that it uses, and questions for what is allocated get what was
    recorded: an allocator that is put in the place of torch's own keeps no statistics."""
    native = library.load()
    answers: dict[str, Any] = {
        "set_device": lambda _device=None: None,
        "memory_allocated": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_allocated": lambda _device=None: native.paper_most_allocated_bytes(),
        "memory_reserved": lambda _device=None: native.paper_allocated_bytes(),
        "max_memory_reserved": lambda _device=None: native.paper_most_allocated_bytes(),
        "reset_peak_memory_stats": lambda _device=None: None,
        "memory_stats": lambda _device=None: {},
    }
    # A function of torch.cuda is called with `device=` too: whatever an argument is called, it comes in its place.
    replaced = {
        f"torch.cuda:{name}": lambda *arguments, answer=answer, **named: answer(*arguments, *named.values())
        for name, answer in answers.items()
    }
    replaced |= {f"torch.accelerator:{name}": replaced[f"torch.cuda:{name}"] for name in _OF_ANY_ACCELERATOR}
    wrapped = {"torch:UntypedStorage.copy_": _copying, "torch._tensor_str:_str": _describe_tensors}
    return upstream.patch_targets("cuda face of a step", replaced=replaced, wrapped=wrapped)


def _copying(on_host: Any) -> Any:
    def copy(storage: Any, source: Any, non_blocking: bool = False) -> Any:
        if source.device.type != "cuda" or storage.device.type != "cpu":
            return on_host(storage, source, non_blocking)
        # A storage has no dtype: whole bytes go to the host, as zeros, and nobody reads them as numbers.
        library.load().paper_write_zeros(storage._cdata)
        return storage

    return copy


def _describe_tensors(on_host: Any) -> Any:
    def text(tensor: Any, *, tensor_contents: str | None = None) -> str:
        """Logging a tensor reads its values; those of the paper GPU are not there."""
        if tensor.device.type != "cuda":
            return str(on_host(tensor, tensor_contents=tensor_contents))
        return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    return text


_LIBRARIES = ("accelerate", "deepspeed", "DeepSpeed", "huggingface_hub", "peft", "torch", "transformers")


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, Python's warnings are not shown, and of the libraries' own logs errors alone."""
    # Loggers of modules that have a level of their own do not ask the one above.
    own = [
        name
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and logger.level and name.partition(".")[0] in _LIBRARIES
    ]
    with raise_log_levels(*_LIBRARIES, *own), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_out_evaluations(job: Job, events: list[Event], repeats: list[Repeat]) -> tuple[list[Event], list[Repeat]]:
    """The events with every evaluation step and every generated token, and what still repeats of them.

    Raises UnlikePartsError where what was run does not tell what was not.
    """
    evaluation = job.train.eval
    if evaluation is None:
        return events, repeats
    batches = shown_batches(evaluation)
    series = [Series(Phase.EVAL, batches, batches_on_device(evaluation))]
    if evaluation.generate is not None:
        new_tokens = evaluation.generate.max_new_tokens
        series.append(Series(Phase.GENERATE, shown_tokens(new_tokens), new_tokens - 1, before=1))
    for repeated in series:
        if any(part.alike for part in repeated.parts):
            events, repeats = write_out(list(write_out_repeats(events, repeats)), repeated), []
    return events, repeats
