"""Changes of a job that need less memory, the cheapest for the training first; last those that train something else, or
need other machines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterator
from typing import Any

from planner.allocator.rules import Rules
from planner.hardware import catalog
from planner.job.gpu_counts import USUAL_NODE
from planner.job.post_training_schema import PostTraining, Rollout, TrainerOffload
from planner.job.schema import Job, Optimizer, Recompute
from planner.searching.changes import apply, fault_of, only_new

Change = dict[str, Any]
Step = tuple[Change, Job]
"""A change, and the job with it."""

_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch.optim with a fused implementation (torch 2.13, torch/optim)."""


_NOTICEABLY = 1.05
"""A larger GPU has so many times the memory: variants of one differ by less."""
_MOST_GPUS = 1024


def single(job: Job) -> Iterator[Step]:
    """Each change by itself."""
    for each in (*_CHEAP, _selective, _full):
        step = each(job)
        if step is not None:
            yield step


def rows(job: Job, refused: Container[str]) -> Iterator[Step]:
    """One change after the other on top of those before it, smaller micro-batches last; `refused` are keys that this
    job cannot be run with at any value. A change that stands alone is left out: :func:`single` has it."""
    change: Change = {}
    for each in (*_CHEAP, _full):
        step = each(job)
        if step is None or any(key in refused for key in step[0]):
            continue
        change, job = {**change, **step[0]}, step[1]
        if len(change) > 1:
            yield change, job
    for smaller, changed in smaller_micro_batches(job):
        yield {**change, **smaller}, changed


def smaller_micro_batches(job: Job) -> Iterator[Step]:
    """Half the micro-batch and twice the accumulation, as often as it goes: the same global batch."""
    size, steps = job.train.micro_batch_size, job.train.gradient_accumulation_steps
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        change = {"train.micro_batch_size": size, "train.gradient_accumulation_steps": steps}
        yield change, _with_train(job, micro_batch_size=size, gradient_accumulation_steps=steps)


def larger_gpus(job: Job) -> Iterator[Step]:
    """GPUs of the same vendor with more memory, the smallest first."""
    own = job.cluster.gpu
    larger = [gpu for gpu in catalog.gpus().values() if gpu.total_bytes > _NOTICEABLY * own.total_bytes]
    for gpu in sorted(larger, key=lambda each: each.total_bytes):
        if gpu.arch[:2] == own.arch[:2]:
            yield from _steps(job, {"cluster.gpu": gpu.name})


def more_gpus(job: Job) -> Iterator[Step]:
    """Twice the GPUs and so on, with and without recomputation: parameters, gradients and state are sharded over all
    that have samples of their own. The global batch stays where it can be divided."""
    cluster, parallel, train = job.cluster, job.parallel, job.train
    data = parallel.dp_replicate.degree * parallel.dp_shard.degree
    times = 2
    while cluster.nodes * cluster.gpus_per_node * times <= _MOST_GPUS:
        gpus = cluster.nodes * cluster.gpus_per_node * times
        per_node = min(gpus, max(USUAL_NODE, cluster.gpus_per_node)) if cluster.nodes == 1 else cluster.gpus_per_node
        if gpus % per_node:
            per_node = cluster.gpus_per_node
        change: Change = {"cluster.nodes": gpus // per_node, "cluster.gpus_per_node": per_node}
        if parallel.deepspeed is not None:
            change["parallel.dp_replicate.degree"] = parallel.dp_replicate.degree * times
        else:
            change |= {"parallel.dp_replicate.degree": 1, "parallel.dp_shard.degree": data * times}
            if train.precision == "bf16_autocast":
                change["train.precision"] = "fsdp_mixed"
        share, left = divmod(train.micro_batch_size * train.gradient_accumulation_steps, times)
        if not left and parallel.pp.degree == 1:
            size = math.gcd(share, train.micro_batch_size)
            change |= {"train.micro_batch_size": size, "train.gradient_accumulation_steps": share // size}
        yield from _steps(job, change, {**change, "train.recompute": "full"})
        times *= 2


def adapters(job: Job, kind: str, refused: Container[str]) -> Iterator[Step]:
    """LoRA (`lora`, or `qlora` beside a model in four bits) in the place of training every parameter: by itself, with
    recomputation, and with all that saves memory."""
    if job.model.hf_config is None or (job.model.adapter is not None and job.model.adapter.kind in (kind, "qlora")):
        return
    half = "float16" if job.train.precision == "fp16_autocast" else "bfloat16"
    change: Change = {"model.adapter": {"kind": kind, "r": 16, "alpha": 32}, "model.parameter_dtype": half}
    found = list(_steps(job, change, {**change, "train.recompute": "full"}))
    yield from found
    if found:
        *_, (more, changed) = [({}, found[0][1]), *rows(found[0][1], refused)]
        yield {**found[0][0], **more}, changed


def _steps(job: Job, *wanted: Change) -> Iterator[Step]:
    """Changes that the rules of a spec allow, without what the job has already; each once."""
    for order, change in enumerate(wanted):
        new = only_new(job, change)
        changed = apply(job, new)
        if fault_of(changed) is None and new not in [only_new(job, each) for each in wanted[:order]]:
            yield new, changed


def _bucket_view(job: Job) -> Step | None:
    replicate = job.parallel.dp_replicate
    if replicate.degree == 1 or replicate.gradient_as_bucket_view or job.parallel.deepspeed is not None:
        return None
    parallel = dataclasses.replace(
        job.parallel, dp_replicate=dataclasses.replace(replicate, gradient_as_bucket_view=True)
    )
    return {"parallel.dp_replicate.gradient_as_bucket_view": True}, dataclasses.replace(job, parallel=parallel)


def _expandable_segments(job: Job) -> Step | None:
    if Rules.from_conf(job.allocator.conf).expandable_segments:
        return None
    conf = ",".join(part for part in (job.allocator.conf, "expandable_segments:True") if part)
    return {"allocator.conf": conf}, dataclasses.replace(job, allocator=dataclasses.replace(job.allocator, conf=conf))


def _fuse_optimizer(job: Job) -> Step | None:
    optimizer = job.train.optimizer
    if optimizer.name not in _FUSED or optimizer.arguments.get("fused") or optimizer.arguments.get("foreach") is False:
        return None
    arguments = {key: value for key, value in optimizer.arguments.items() if key != "foreach"}
    fused = Optimizer(name=optimizer.name, arguments={**arguments, "fused": True})
    change: Change = {"train.optimizer.fused": True}
    if "foreach" in optimizer.arguments:
        change["train.optimizer.foreach"] = None
    return change, _with_train(job, optimizer=fused)


def _sequence_parallel(job: Job) -> Step | None:
    tp, tokens = job.parallel.tp, job.train.sequence_length
    if tp.degree == 1 or tp.sequence_parallel or tp.plan or not tokens or tokens % (tp.degree * job.parallel.cp.degree):
        return None
    if job.model.decoder is None and (job.model.hf_config is None or job.parallel.pp.degree > 1):
        return None
    parallel = dataclasses.replace(job.parallel, tp=dataclasses.replace(tp, sequence_parallel=True))
    return {"parallel.tp.sequence_parallel": True}, dataclasses.replace(job, parallel=parallel)


def _chunked_loss(job: Job) -> Step | None:
    loss = job.train.loss
    if loss.name != "cross_entropy" or loss.chunks != 1 or job.train.sequence_length < 8:
        return None
    return {"train.loss.chunks": 8}, _with_train(job, loss=dataclasses.replace(loss, chunks=8))


def _save_by_the_host(job: Job) -> Step | None:
    """What a save gathers goes to the host tensor by tensor."""
    save = job.train.checkpoint_save
    if save is None or save.kind != "full_state_dict" or save.cpu_offload:
        return None
    change: Change = {"train.checkpoint_save.cpu_offload": True}
    return change, _with_train(job, checkpoint_save=dataclasses.replace(save, cpu_offload=True))


def _send_results_to_the_host(job: Job) -> Step | None:
    """What an evaluation gathers leaves the GPU with every step."""
    said = job.train.eval
    if said is None or not said.gather or said.accumulation_steps == 1 or said.batches == 1:
        return None
    change: Change = {"train.eval.accumulation_steps": 1}
    return change, _with_train(job, eval=dataclasses.replace(said, accumulation_steps=1))


def _selective(job: Job) -> Step | None:
    if job.train.recompute.mode != "none":
        return None
    return {"train.recompute": "selective"}, _with_train(job, recompute=Recompute(mode="selective"))


def _full(job: Job) -> Step | None:
    if job.train.recompute.mode == "full":
        return None
    return {"train.recompute": "full"}, _with_train(job, recompute=Recompute(mode="full"))


def _reshard(job: Job) -> Step | None:
    shard = job.parallel.dp_shard
    if shard.degree == 1 or shard.reshard_after_forward is True:
        return None
    parallel = dataclasses.replace(job.parallel, dp_shard=dataclasses.replace(shard, reshard_after_forward=True))
    return {"parallel.dp_shard.reshard_after_forward": True}, dataclasses.replace(job, parallel=parallel)


def _rest_the_trainer(job: Job) -> Step | None:
    """What of the trainer may rest on the host while others have its GPU."""
    said = job.post_training
    if said is None or job.parallel.dp_shard.offload == "cpu":
        return None
    if said.trainer_offload.parameters and said.trainer_offload.optimizer and said.empty_cache:
        return None
    change = {
        "post_training.trainer_offload.parameters": True,
        "post_training.trainer_offload.optimizer": True,
        "post_training.empty_cache": True,
    }
    resting = dataclasses.replace(
        said, trainer_offload=TrainerOffload(parameters=True, optimizer=True), empty_cache=True
    )
    return change, dataclasses.replace(job, post_training=resting)


def _put_the_engine_to_sleep(job: Job) -> Step | None:
    said = job.post_training
    if said is None or said.rollout.sleep_level:
        return None
    rollout = dataclasses.replace(said.rollout, sleep_level=1)
    return _with_rollout(job, said, {"post_training.rollout.sleep_level": 1}, rollout)


def _largest_safe_share(job: Job) -> Step | None:
    said = job.post_training
    if said is None or not said.rollout.gpu_memory_utilization:
        return None
    rollout = dataclasses.replace(said.rollout, gpu_memory_utilization=0.0)
    return _with_rollout(job, said, {"post_training.rollout.gpu_memory_utilization": 0}, rollout)


def _with_rollout(job: Job, said: PostTraining, change: Change, rollout: Rollout) -> Step:
    return change, dataclasses.replace(job, post_training=dataclasses.replace(said, rollout=rollout))


def _with_train(job: Job, **fields: Any) -> Job:
    return dataclasses.replace(job, train=dataclasses.replace(job.train, **fields))


_CHEAP: tuple[Callable[[Job], Step | None], ...] = (
    _largest_safe_share, _put_the_engine_to_sleep, _rest_the_trainer, _save_by_the_host, _send_results_to_the_host,
    _bucket_view, _expandable_segments, _fuse_optimizer, _sequence_parallel, _chunked_loss, _reshard,
)  # fmt: skip
"""What costs no computation, or little."""
