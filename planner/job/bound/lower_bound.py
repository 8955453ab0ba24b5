"""The lower bound of a job: bytes that its fullest rank holds at once in every training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError
from planner.job import deepspeed_config, pipeline_schedules
from planner.job.bound.parameters import Shape, elements_of, shape_of
from planner.job.layout import Mesh, axis_degrees
from planner.job.overhead import outside_of
from planner.job.schema import AS_BUILT, Job, Optimizer, Pp

_HALF, _FLOAT = 2, 4
# Counted is what every kernel of torch 2.13 saves: the input of each block; of an eager block of a gated decoder the
# inputs of its norms and products, queries, keys, values and what attention makes of them, and of the MLP gate,
# activated gate, their factor and the product; under selective recomputation the attention's result and one of the two
# wide products; of a cross entropy in one piece what its backward holds at once. Everything else comes on top.
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


_TENSORS = {
    "Adadelta": 2, "Adagrad": 1, "Adam": 2, "AdamW": 2, "Adamax": 2, "ASGD": 1, "NAdam": 2, "RAdam": 2, "RMSprop": 1,
    "Rprop": 2, "SGD": 0,
}  # fmt: skip
"""Tensors of the parameter's shape and dtype (torch 2.13, torch/optim/*.py, `_init_group`). Others keep less than the
parameter (Adafactor), or do not take every parameter (Muon, SparseAdam): nothing is known of them for sure."""
_LOW_BIT = {
    "bitsandbytes.Adam8bit": 2, "bitsandbytes.AdamW8bit": 2, "torchao.Adam8bit": 2, "torchao.AdamW8bit": 2,
    "torchao.AdamFp8": 2, "torchao.AdamWFp8": 2, "torchao.Adam4bit": 1, "torchao.AdamW4bit": 1,
}  # fmt: skip
"""Bytes of an element's codes, without scales and tables (planner/training/optimizers.py); a paged optimizer's lie in
memory that no allocator counts."""


def state_bytes(optimizer: Optimizer, element_bytes: int) -> int:
    """Bytes that are kept of an element, at least, if the parameter's take `element_bytes`."""
    if optimizer.name in _LOW_BIT:
        return _LOW_BIT[optimizer.name]
    tensors = _TENSORS.get(optimizer.name)
    return 0 if tensors is None else (tensors + _more(optimizer.name, optimizer.arguments)) * element_bytes


def _more(name: str, arguments: Mapping[str, Any]) -> int:
    """Tensors that arguments ask for; a value that is no number or flag asks for nothing here."""
    if name in ("Adam", "AdamW"):
        return arguments.get("amsgrad") is True
    if name == "SGD":
        return _is_positive(arguments.get("momentum"))
    if name == "RMSprop":
        return _is_positive(arguments.get("momentum")) + (arguments.get("centered") is True)
    return 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


MOST_BYTES = 2**62
"""What a bound says of sizes beyond all GPUs: it fits into the integers of every language that reads it."""

_DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, AS_BUILT: 0}
"""Bytes of an element; of a factory's model nothing is known."""
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bytes of the fullest rank: at least so many; and what it may use of its GPU (0: no GPU is named)."""

    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_state_bytes: int = 0
    forward_bytes: int = 0
    """What lies there beside parameters and state when a backward begins: saved activations, gathered parameters."""
    outside_bytes: int = 0
    """CUDA context and communicators, at the low end of what is known of them."""
    capacity_bytes: int = 0

    @property
    def least_bytes(self) -> int:
        """All of it: no plan of the job says less."""
        beside = max(self.gradient_bytes, self.forward_bytes)
        return min(self.parameter_bytes + self.optimizer_state_bytes + beside + self.outside_bytes, MOST_BYTES)

    @property
    def exceeds(self) -> bool:
        """Whether the job cannot run, whatever its plan will say."""
        return 0 < self.capacity_bytes < self.least_bytes


def lower_bound(job: Job, *, outside_bytes: int | None = None) -> Bound:
    """The bound of a job that was read from a spec or a bundle; takes well below a millisecond.

    `outside_bytes` is what lies outside the allocator at least, where a calibration knows better than the table.
    """
    mesh = Mesh.of(job.parallel)
    if outside_bytes is None:
        outside_bytes = outside_of(job).low_bytes
    parameters, gradients, state = _estimate_state_bytes(job, elements_of(job.model), mesh.world_size)
    return Bound(
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        forward_bytes=saved_bytes(job) + gathered_bytes(job),
        outside_bytes=outside_bytes,
        capacity_bytes=max(job.cluster.capacity_bytes, 0),
    )


def _estimate_state_bytes(job: Job, elements: int, ranks: int) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state, each as the mean of all ranks."""
    if job.parallel.deepspeed is not None:
        return _estimate_deepspeed_state_bytes(job, elements, ranks)
    if job.parallel.dp_shard.offload:
        return 0, 0, 0
    copies = job.parallel.dp_replicate.degree
    parts = ranks // copies
    element_bytes = _DTYPES[job.model.parameter_dtype]
    if job.model.adapter is not None:
        # Frozen, and under qlora in half a byte; what is trained beside it is small.
        frozen = elements // 2 if job.model.adapter.kind == "qlora" else elements * element_bytes
        return frozen // parts, 0, 0
    parameters = elements * element_bytes
    if not _trains_all(job):
        return parameters // parts, 0, 0
    state = elements * state_bytes(job.train.optimizer, element_bytes)
    state_parts = ranks if job.parallel.dp_replicate.zero_redundancy_optimizer else parts
    return parameters // parts, _gradient_copies(job) * parameters // parts, state // state_parts


def _trains_all(job: Job) -> bool:
    """Whether every parameter gets a gradient: a model that is not given tokens or pictures does not use its own
    embedding of them."""
    return not job.train.inputs or bool({"input_ids", "pixel_values"} & job.train.inputs.keys())


def _gradient_copies(job: Job) -> int:
    """How often gradients are there when the optimizer steps: DistributedDataParallel has its buckets beside them."""
    if job.train.optimizer_in_backward:
        return 0
    degrees = axis_degrees(job.parallel)
    replicated = degrees["dp_replicate"] > 1 and degrees["dp_shard"] * degrees["cp"] * degrees["ep"] == 1
    return 2 if replicated and not job.parallel.dp_replicate.gradient_as_bucket_view else 1


def _estimate_deepspeed_state_bytes(job: Job, elements: int, ranks: int) -> tuple[int, int, int]:
    """Low-precision parameters, and the partition in fp32 with its state: whole parameters below stage 3.

    The gradient of the partition is in fp32 too while it steps, below stage 3; above, in parts whose size depends on
    the config.
    """
    try:
        zero = deepspeed_config.zero_of(job)
    except PlannerError:
        return 0, 0, 0
    parameters = elements * _DTYPES[zero.dtype]
    if not _trains_all(job):
        return (0 if zero.stage == 3 else parameters), 0, 0
    partition = 0 if zero.offload else elements * _FP32
    state = 0 if zero.offload else elements * state_bytes(zero.optimizer, _FP32)
    if zero.stage == 3:
        offloaded = _offloads_parameters(job)
        return 0 if offloaded else parameters // ranks, 0, (partition + state) // ranks
    return parameters, partition // ranks, (partition + state) // ranks


def _offloads_parameters(job: Job) -> bool:
    zero = deepspeed_config.Part(job.parallel.deepspeed or {}, "", "").part("zero_optimization")
    return bool(zero.part("offload_param").values.get("device", "none") != "none")
