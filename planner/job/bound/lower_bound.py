"""The lower bound of a job: bytes that its fullest rank holds at once in every training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.job import pipeline_schedules
from planner.job.bound.parameters import Shape, elements_of, shape_of
from planner.job.layout import Mesh, axis_degrees
from planner.job.overhead import outside_of
from planner.job.schema import AS_BUILT, Job, Optimizer, Pp

_HALF, _FLOAT = 2, 4
# Counted is what every kernel of torch 2.13 saves: the input of each block; of an eager block of a gated decoder the
# inputs of its norms and products, queries, keys, values and what attention makes of them, and of the MLP gate,
# activated gate, their factor and the product; under selective recomputation the attention's result and one of the two
# wide products; of a cross entropy in one piece what its backward holds at once. Everything else comes on top.
_LOSS_TENSORS = 3
"""At once in the backward of cross entropy: the log softmax, the gradient of the nll loss, and that of the softmax
(aten/src/ATen/native/SoftMax.cpp, LossNLL.cpp)."""


def _saved_bytes(job: Job, shape: Shape) -> int:
    """Bytes of the mean rank at the end of a forward, at least; 0 where nothing is known for sure."""
    train, model, tp, pp = job.train, job.model, job.parallel.tp, job.parallel.pp
    # Compiled programs save what their partitioner chooses; an adapter's model and an offload less.
    other = train.compile is not None or model.adapter is not None
    if other or train.activation_offload or train.inputs or not train.sequence_length or train.iterations < 2:
        return 0
    tokens = train.micro_batch_size * train.sequence_length // job.parallel.cp.degree
    streams, inner = 1, 0
    if shape.gated_ffn:
        attention = shape.heads * shape.head_size
        if train.recompute.mode == "none":
            # What goes into each of the two norms, and what comes out of them into the products, whose weights want a
            # gradient.
            streams, inner = 4, 4 * shape.gated_ffn + 2 * attention + 2 * shape.kv_heads * shape.head_size
        elif train.recompute.mode == "selective":
            inner = shape.gated_ffn + attention
    computed = _FLOAT if train.precision == "none" and model.parameter_dtype == "float32" else _HALF
    # Under tensor parallelism all of it may be split; a plan of one's own may split any dim.
    block = tokens * (streams * shape.hidden + inner) // tp.degree * computed
    if pp.degree > 1:
        return _layers_under_way(pp, shape.layers, train.gradient_accumulation_steps) * block // pp.degree
    named = (model.hf_config or {}).get("architectures") or ["ForCausalLM"]
    is_causal = isinstance(named, list) and str(named[0]).endswith(("ForCausalLM", "LMHeadModel"))
    loss, logits = train.loss, 0
    is_whole = loss.name == "cross_entropy" and loss.chunks == 1 and loss.dtype == "float32"
    if is_whole and model.head in ("", "causal_lm") and (model.decoder is not None or is_causal):
        logits = _LOSS_TENSORS * tokens * (shape.vocab // tp.degree) * _FLOAT
    return shape.layers * block + logits


def _gathered_bytes(job: Job, shape: Shape) -> int:
    """Bytes of the whole parameters that lie beside their shards when the backward begins: what is not resharded."""
    shard, degrees = job.parallel.dp_shard, axis_degrees(job.parallel)
    is_kept = shard.reshard_after_forward is False and shard.degree > 1 and degrees["pp"] == 1 and degrees["ep"] == 1
    if not is_kept or job.model.adapter is not None or shape.is_mixture:
        return 0
    is_float = job.train.precision != "fsdp_mixed" and job.model.parameter_dtype in ("float32", AS_BUILT)
    return shape.elements * (_FLOAT if is_float else _HALF) // degrees["tp"]


def _layers_under_way(pp: Pp, layers: int, count: int) -> int:
    """The sum over the ranks of the layers whose forward is done when most of `count` micro-batches are under way, each
    time counted."""
    counts = pipeline_schedules.layers_of_stages(pp, layers)
    if pp.schedule == "GPipe":
        return sum(counts) * count
    if pp.schedule == "1F1B":
        return sum(number * min(count, pp.degree - stage) for stage, number in enumerate(counts))
    if pp.schedule != "Interleaved1F1B":
        return 0
    # Before the first backward of a rank (torch 2.13, torch/distributed/pipelining/schedules.py, `_get_warmup_ops` and
    # `ScheduleInterleaved1F1B`).
    in_round, total = count // max(1, count // pp.degree), 0
    for rank in range(pp.degree):
        stages = pipeline_schedules.stages_of(pp, rank)
        warm_up = (len(stages) - 1) * in_round + 2 * (pp.degree - 1 - rank)
        forwards = min(warm_up + 1, count * len(stages))
        total += sum(counts[stages[step // in_round % len(stages)]] for step in range(forwards))
    return total


_TENSORS = {
    "Adadelta": 2, "Adagrad": 1, "Adam": 2, "AdamW": 2, "Adamax": 2, "ASGD": 1, "NAdam": 2, "RAdam": 2, "RMSprop": 1,
    "Rprop": 2, "SGD": 0,
}  # fmt: skip
"""Tensors of the parameter's shape and dtype (torch 2.13, torch/optim/*.py, `_init_group`). Others keep less than the
parameter (Adafactor), or do not take every parameter (Muon, SparseAdam): nothing is known of them for sure."""
_BITSANDBYTES: Mapping[str, tuple[int, ...]] = {
    "Adam": (1, 1), "AdamW": (1, 1), "AdEMAMix": (2, 1), "Lion": (1,), "RMSprop": (1,),
}  # fmt: skip
"""Of each state of its optimizers, how many tensors of the parameter's shape lie in it (AdEMAMix has two averages in
its first)."""
_LOW_BIT = {
    **{f"bitsandbytes.{name}8bit": sum(copies) for name, copies in _BITSANDBYTES.items()},
    **{f"bitsandbytes.{name}": 4 * sum(copies) for name, copies in _BITSANDBYTES.items()},
    "torchao.Adam8bit": 2, "torchao.AdamW8bit": 2, "torchao.AdamFp8": 2, "torchao.AdamWFp8": 2, "torchao.Adam4bit": 1,
    "torchao.AdamW4bit": 1,
}  # fmt: skip
"""Bytes of an element's state, without scales and tables; a paged optimizer's lies in
memory that no allocator counts."""


def state_bytes(optimizer: Optimizer, element_bytes: int) -> int:
    """Bytes that are kept of an element, at least, if the parameter's take `element_bytes`."""
    name, arguments = optimizer.name, optimizer.arguments
    if name in _LOW_BIT:
        return _LOW_BIT[name]
    if name not in _TENSORS:
        return 0
    # A value that is not a number or flag asks for nothing here.
    momentum = arguments.get("momentum")
    has_momentum = isinstance(momentum, int | float) and not isinstance(momentum, bool) and momentum > 0
    tensors = _TENSORS[name]
    tensors += name in ("Adam", "AdamW") and arguments.get("amsgrad") is True
    tensors += name in ("SGD", "RMSprop") and has_momentum
    tensors += name == "RMSprop" and arguments.get("centered") is True
    return tensors * element_bytes


MOST_BYTES = 2**62
"""What a bound says of sizes beyond all GPUs: it fits into the integers of every language that reads it."""

_DTYPES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, AS_BUILT: 0}
"""Bytes of an element; of a factory's model nothing is known."""


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
    certain = Bound(
        outside_bytes=outside_of(job).low_bytes if outside_bytes is None else outside_bytes,
        capacity_bytes=max(job.cluster.capacity_bytes, 0),
    )
    if job.trainer is not None:  # whose files decide what is sharded, offloaded and trained
        return certain
    shape, world_size = shape_of(job.model), Mesh.of(job.parallel).world_size
    parameters, gradients, state = _estimate_state_bytes(job, elements_of(job.model), world_size)
    return replace(
        certain,
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        forward_bytes=0 if shape is None else _saved_bytes(job, shape) + _gathered_bytes(job, shape),
    )


def _estimate_state_bytes(job: Job, elements: int, ranks: int) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer state, each as the mean of all ranks."""
    # A model that is not given tokens or pictures does not use its own embedding of them, which gets no gradient.
    trains_all = not job.train.inputs or bool({"input_ids", "pixel_values"} & job.train.inputs.keys())
    if job.parallel.dp_shard.offload:
        return 0, 0, 0
    degrees, replicate = axis_degrees(job.parallel), job.parallel.dp_replicate
    parts = ranks // replicate.degree
    element_bytes = _DTYPES[job.model.parameter_dtype]
    if job.model.adapter is not None:
        # Frozen, and under qlora in half a byte; what is trained beside it is small.
        frozen = elements // 2 if job.model.adapter.kind == "qlora" else elements * element_bytes
        return frozen // parts, 0, 0
    parameters = elements * element_bytes
    if not trains_all:
        return parameters // parts, 0, 0
    # DistributedDataParallel has its buckets beside the gradients.
    is_replicated = replicate.degree > 1 and degrees["dp_shard"] * degrees["cp"] * degrees["ep"] == 1
    copies = 2 if is_replicated and not replicate.gradient_as_bucket_view else 1
    gradients = 0 if job.train.optimizer_in_backward else copies * parameters
    state = elements * state_bytes(job.train.optimizer, element_bytes)
    state_parts = ranks if replicate.zero_redundancy_optimizer else parts
    return parameters // parts, gradients // parts, state // state_parts
