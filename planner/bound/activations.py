"""What a forward leaves for its backward, at least: bytes that lie beside parameters and optimizer state.

Counted is what every kernel of torch 2.13 saves: the input of each block; of an eager block of a gated decoder the
inputs of its norms and products, queries, keys, values and what attention makes of them, and of the MLP gate, activated
gate, their factor and the product; under selective recomputation the attention's result and one of the two wide
products; of a cross entropy in one piece what its backward holds at once. Everything else comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.bound.shape import Shape, shape_of
from planner.job import pipeline_schedules
from planner.job.axes import axis_degrees
from planner.job.schema import AS_BUILT, Job, Pp

_HALF, _FLOAT = 2, 4
_KEPT_STREAMS = {"none": 4}
"""Tensors of the width of the residual stream that an eager block of a gated decoder saves: what goes into each of its
two norms, and what comes out of them into the products, whose weights want a gradient."""
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
    tp, mode = job.parallel.tp, job.train.recompute.mode
    streams, inner = _KEPT_STREAMS.get(mode, 1), 0
    if shape.gated_ffn and not tp.plan:
        attention = shape.heads * shape.head_size
        pairs = 2 * shape.kv_heads * shape.head_size
        inner = {
            "none": 4 * shape.gated_ffn + 2 * attention + pairs,
            "selective": shape.gated_ffn + attention,
        }.get(mode, 0)
    else:
        streams = 1
    # Under tensor parallelism all of it may be split; a plan of one's own may split any dim.
    return tokens * (streams * shape.hidden + inner) // tp.degree * _computed_bytes(job)


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
    layers = pipeline_schedules.layers_of_stages(pp, shape.layers)
    if pp.schedule == "Interleaved1F1B":
        return sum(_interleaved_layers(pp, layers, count, rank) for rank in range(pp.degree)) * block // pp.degree
    if pp.schedule not in ("1F1B", "GPipe"):
        return 0
    flying = [count if pp.schedule == "GPipe" else min(count, pp.degree - stage) for stage in range(pp.degree)]
    return sum(each * at_once for each, at_once in zip(layers, flying, strict=True)) * block // pp.degree


def _interleaved_layers(pp: Pp, layers: Sequence[int], count: int, rank: int) -> int:
    """Layers whose forward a rank has done before its first backward, each time counted (torch 2.13,
    torch/distributed/pipelining/schedules.py, `_get_warmup_ops` and `ScheduleInterleaved1F1B`)."""
    stages = pipeline_schedules.stages_of(pp, rank)
    in_round = count // max(1, count // pp.degree)
    warm_up = (len(stages) - 1) * in_round + 2 * (pp.degree - 1 - rank)
    forwards = min(warm_up + 1, count * len(stages))
    return sum(layers[stages[step // in_round % len(stages)]] for step in range(forwards))
