"""The lower bound of a job: bytes that its fullest rank holds at once in every training step.

When an optimizer has stepped for the first time, parameters, gradients and its state are all there; when the next
backward begins, parameters, state and what the forward saved. The larger of the two counts, and whatever else a step
holds comes on top. Of what is split nobody's part is followed: the ranks of a job hold so much together, and the
fullest of them at least the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.bound.activations import gathered_bytes, saved_bytes
from planner.bound.optimizer_state import state_bytes
from planner.bound.parameters import elements_of
from planner.errors import PlannerError
from planner.job import deepspeed_config
from planner.job.axes import axis_degrees
from planner.job.schema import AS_BUILT, Job
from planner.layout.mesh import Mesh
from planner.overhead.outside_of_job import outside_of

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
