"""What a forward leaves for its backward, at least: bytes that lie beside parameters and optimizer state.

Counted is what every kernel of torch 2.13 saves whatever is fused or chosen: the input of each block, of a gated MLP
in eager mode the two operands and the result of its product, of a cross entropy in one piece what its backward holds
at once. Everything else a step keeps comes on top.
"""

from __future__ import annotations

from planner.bound.shape import Shape, shape_of
from planner.job import pipeline_schedules
from planner.job.axes import axis_degrees
from planner.job.schema import AS_BUILT, Job

_HALF, _FLOAT = 2, 4
_LOSS_TENSORS = 3
"""At once in the backward of cross entropy: the log softmax, the gradient of the nll loss, and that of the softmax
(aten/src/ATen/native/SoftMax.cpp, LossNLL.cpp)."""


def saved_bytes(job: Job) -> int:
    """Bytes of the mean rank at the end of a forward, at least; 0 where nothing is known for sure."""
    shape = shape_of(job.model)
    if shape is None or not _counts(job):
        return 0
    tokens = job.train.micro_batch_size * job.train.sequence_length // job.parallel.cp.degree
    block = _block_bytes(job, shape, tokens)
    if job.parallel.pp.degree > 1:
        return _pipeline_bytes(job, shape, block)
    return shape.layers * block + _loss_bytes(job, shape, tokens)


def gathered_bytes(job: Job) -> int:
    """Bytes of the whole parameters that lie beside their shards when the backward begins: what is not resharded."""
    shard, degrees = job.parallel.dp_shard, axis_degrees(job.parallel)
    shape = shape_of(job.model)
    kept = shard.reshard_after_forward is False and shard.degree > 1 and degrees["pp"] == 1 and degrees["ep"] == 1
    if shape is None or not kept or job.model.adapter is not None or shape.is_mixture:
        return 0
    element = _HALF if job.train.precision == "fsdp_mixed" else _element_bytes(job)
    return shape.elements * element // degrees["tp"]


def _counts(job: Job) -> bool:
    """Compiled programs save what their partitioner chooses; an adapter's model, DeepSpeed's and an offload less."""
    train = job.train
    other = train.compile is not None or job.model.adapter is not None or job.parallel.deepspeed is not None
    return not (other or train.activation_offload or train.inputs or not train.sequence_length or train.iterations < 2)


def _element_bytes(job: Job) -> int:
    return _FLOAT if job.model.parameter_dtype in ("float32", AS_BUILT) else _HALF


def _computed_bytes(job: Job) -> int:
    """Of a number that a block computes with."""
    return _FLOAT if job.train.precision == "none" and job.model.parameter_dtype == "float32" else _HALF


def _block_bytes(job: Job, shape: Shape, tokens: int) -> int:
    """Of one block and one micro-batch."""
    tp = job.parallel.tp
    element = _computed_bytes(job)
    # Under tensor parallelism a plan of one's own may split any dim.
    stream = tokens * shape.hidden * element // tp.degree
    if job.train.recompute.mode != "none" or tp.plan:
        return stream
    return stream + 3 * tokens * (shape.gated_ffn // tp.degree) * element


def _loss_bytes(job: Job, shape: Shape, tokens: int) -> int:
    loss, parallel = job.train.loss, job.parallel
    whole = loss.name == "cross_entropy" and loss.chunks == 1 and loss.dtype == "float32"
    causal = job.model.head in ("", "causal_lm") and _is_causal(job)
    if not whole or not causal:
        return 0
    return _LOSS_TENSORS * tokens * (shape.vocab // parallel.tp.degree) * _FLOAT


def _is_causal(job: Job) -> bool:
    if job.model.decoder is not None:
        return True
    named = (job.model.hf_config or {}).get("architectures") or ["ForCausalLM"]
    return isinstance(named, list) and str(named[0]).endswith(("ForCausalLM", "LMHeadModel"))


def _pipeline_bytes(job: Job, shape: Shape, block: int) -> int:
    """The mean over the ranks of what lies in their blocks when most micro-batches are under way."""
    pp, count = job.parallel.pp, job.train.gradient_accumulation_steps
    if pp.schedule not in ("1F1B", "GPipe"):
        return 0
    layers = pipeline_schedules.layers_of_stages(pp, shape.layers)
    flying = [count if pp.schedule == "GPipe" else min(count, pp.degree - stage) for stage in range(pp.degree)]
    return sum(each * at_once for each, at_once in zip(layers, flying, strict=True)) * block // pp.degree
