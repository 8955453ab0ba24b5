"""What an inference engine beside the trainer takes, from its parameters and a forward on the paper GPU."""

from __future__ import annotations

import math
from dataclasses import replace

from planner import paper  # before torch
from planner.errors import PlannerError
from planner.events import Alloc, Event, Free, Mark, Phase
from planner.job.schema import Job, Parallel, Tp, Train
from planner.rollout.engine_figures import EngineFigures
from planner.rollout.kv_cache import KvShape, kv_shape_of
from planner.tracing import absent_host, trace_failures
from planner.training import absent_peers, dtensor_speed, engine_parameters, engine_pass


def engine_figures(job: Job, target: str = "") -> EngineFigures:
    """Of the job's engine. Raises SpecError for a model whose cache is not known, TraceError for a forward that cannot
    be traced."""
    assert job.post_training is not None
    rollout = job.post_training.rollout
    shape = kv_shape_of(job.model)
    kept = rollout.dtype if rollout.kv_cache_dtype == "auto" else rollout.kv_cache_dtype
    split = _traced_split(shape, rollout.tensor_parallel)
    assumed: tuple[str, ...] = ()
    if split != rollout.tensor_parallel:
        assumed = (
            f"the engine's activations are those of {split} ranks, since fewer than {rollout.tensor_parallel} KV heads"
            " are not split further",
        )
    sizes = engine_parameters.engine_tensor_bytes(job.model, rollout.dtype, rollout.tensor_parallel, shape.kv_heads)
    return EngineFigures(
        weight_tensors=tuple(sizes),
        kv_layers=shape.layers,
        activation_bytes=_activation_bytes(_engine_job(job, split), target or job.cluster.gpu.arch),
        kv_token_bytes=shape.bytes_per_token(rollout.tensor_parallel, kept),
        assumed=assumed,
    )


def _traced_split(shape: KvShape, ranks: int) -> int:
    return math.gcd(shape.kv_heads, ranks) if not shape.latent_dim else ranks


def _engine_job(job: Job, ranks: int) -> Job:
    assert job.post_training is not None
    rollout = job.post_training.rollout
    return replace(
        job,
        model=replace(job.model, parameter_dtype=rollout.dtype),
        train=Train(sequence_length=rollout.max_model_len),
        parallel=Parallel(tp=Tp(degree=ranks)),
    )


def _activation_bytes(job: Job, target: str) -> int:
    assert job.post_training is not None
    software = job.software
    gpus = job.cluster.gpus_per_node
    with paper.gpu(target, gpus, cuda=software.cuda, torch_version=software.torch) as gpu:
        try:
            with (
                absent_peers.join(0, job.parallel.tp.degree),
                absent_host.left_out() as host,
                dtensor_speed.once_for_all_parameters(),
            ):
                engine_pass.run(job, job.post_training.rollout, gpu.device, gpu.recorder, host)
                events = gpu.recorder.events()
        except (PlannerError, MemoryError):
            raise
        except Exception as error:
            raise trace_failures.untraceable(error, compiles=False) from error
    return _grown(events)


def _grown(events: list[Event]) -> int:
    """From the beginning of the rollout to its peak, in bytes asked for."""
    alive: dict[int, int] = {}
    now = before = highest = 0
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event.requested_bytes
            now += event.requested_bytes
            highest = max(highest, now)
        elif isinstance(event, Free):
            now -= alive.pop(event.block)
        elif isinstance(event, Mark) and event.phase is Phase.ROLLOUT:
            before = highest = now
    return highest - before
