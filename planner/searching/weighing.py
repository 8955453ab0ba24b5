"""Ranks candidates without planning any: by rules, the lower bound, and a roofline of the training step.

The roofline orders candidates and is never shown: what it assumes of overlap and groups, docs/search.md says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from planner.errors import SpecError
from planner.hardware.catalog import network_gb_s, speed_of
from planner.hardware.gpu_records import Speed
from planner.job import pipeline_schedules
from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.bound.parameters import Shape, shape_of
from planner.job.layout import axis_degrees, tokens_of_step
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.searching.exact_plans import Exact
from planner.searching.space import Candidate, Space, broken_rule

MATMUL, ATTENTION, MOVING = 0.6, 0.3, 0.75
_STREAM_PASSES, _INNER_PASSES = 40, 40
"""Times that a number of the residual stream, or of what lies inside of a block, goes through memory in the forward of
an eager block in 2 bytes: norms in float32, residuals, rotary positions, gates, casts. Doubled in the backward."""
_COMPILED_PASSES = 0.4
_LOSS_PASSES = 10
"""Of the logits in 4 bytes."""
_SELECTIVE = 0.5
"""Of a block's products that operator-level checkpointing computes again: every second (torchtitan's policy)."""
_SPLIT_BUBBLE = 1 / 3
"""Qi et al. 2023 (zero bubble pipeline parallelism, ZB-H1): forward, gradient of inputs and of weights cost the same,
and the last of them fills."""
_HOST_GB_S = 25.0
"""Of the host's memory for each GPU while an optimizer steps there."""
_STEP_BYTES = {True: 28, False: 60}
"""Of an element's optimizer step with two states in float32: fused, and operator after operator."""


def cost_of(job: Job) -> float | None:
    """The GPU time of a token at the roofline, in seconds of a machine that reaches it: only ratios mean anything. None
    where the model's sizes or the GPU's speeds are not known."""
    shape, speed = shape_of(job.model), speed_of(job.cluster.gpu.name)
    if shape is None or speed is None or not job.train.sequence_length or job.trainer is not None:
        return None
    return _Step(job, shape, speed).cost()


@dataclass(frozen=True, slots=True)
class _Step:
    """One rank's share of an optimizer step."""

    job: Job
    shape: Shape
    speed: Speed

    def cost(self) -> float:
        count = self.job.train.gradient_accumulation_steps
        busy, blocking = count * (self._compute() + self._memory()), count * self._blocking()
        # Tensor, context and expert parallelism are not hidden; of data parallelism what the computation does not hide.
        exposed = max(self._data_parallel(count) - busy, 0.0)
        step = busy + blocking + exposed + self._bubble() * (busy + blocking) + self._optimizer()
        return step * math.prod(axis_degrees(self.job.parallel).values()) / tokens_of_step(self.job)

    @property
    def _tokens(self) -> float:
        """Of a rank's part of a micro-batch."""
        return self.job.train.micro_batch_size * self.job.train.sequence_length / self.job.parallel.cp.degree

    @property
    def _split(self) -> int:
        """Into how many parts tensor and pipeline parallelism divide the model."""
        return self.job.parallel.tp.degree * self.job.parallel.pp.degree

    def _compute(self) -> float:
        """Of one micro-batch: forward 2 operations a parameter and token, backward twice that, and what is computed
        again; attention half of its square, being causal."""
        shape, train = self.shape, self.job.train
        products = 2 * shape.active_elements * self._tokens
        attention = 2 * train.sequence_length * shape.heads * shape.head_size * shape.layers * self._tokens
        frozen = self.job.model.adapter is not None
        backward = 1 if frozen else 2  # of a frozen layer there is no gradient of weights
        matmuls = products * (1 + backward + self._again(_SELECTIVE))
        attentions = attention * (1 + 2 + self._again(0.0))
        # float32 without tensor cores' bfloat16: an eighth is what data sheets say of TF32 and FP32, roughly.
        is_full_precision = train.precision == "none" and self.job.model.parameter_dtype in ("float32", "float64")
        peak = self.speed.teraflops * 1e12 * self._split * (0.125 if is_full_precision else 1)
        return matmuls / (peak * MATMUL) + attentions / (peak * ATTENTION)

    def _again(self, selective: float) -> float:
        """Share of a block's forward that is computed again."""
        recompute = self.job.train.recompute
        return {"none": 0.0, "full": 1.0, "selective": selective, "every": 1 / recompute.every}[recompute.mode]

    def _memory(self) -> float:
        """Of one micro-batch: passes over activations, weights and gradients."""
        shape, tp = self.shape, self.job.parallel.tp
        stream = _STREAM_PASSES / (tp.degree if tp.sequence_parallel else 1)
        passes = (stream + _INNER_PASSES / tp.degree) * (_COMPILED_PASSES if self.job.train.compile else 1)
        blocks = self._tokens * shape.hidden * 2 * passes * (3 + self._again(1.0)) * shape.layers
        logits = self._tokens * shape.vocab * 4 * _LOSS_PASSES / tp.degree
        weights = 3 * 2 * shape.elements / tp.degree
        parked = 0.0
        if self.job.train.activation_offload:
            per_token = shape.hidden * 2 * (1 if self.job.train.recompute.mode == "full" else 16)
            saved = self._tokens * per_token * shape.layers / self._split
            parked = 2 * saved / (self.speed.host_gb_s * 1e9)
        moved = (blocks + logits + weights) / self.job.parallel.pp.degree
        return moved / (self.speed.memory_gb_s * 1e9 * MOVING) + parked

    def _blocking(self) -> float:
        """Of one micro-batch."""
        shape, degrees = self.shape, axis_degrees(self.job.parallel)
        stream, layers = self._tokens * shape.hidden * 2, shape.layers / degrees["pp"]
        seconds = 0.0
        if degrees["tp"] > 1:  # two all-reduces in a block's forward, two in its backward
            rounds = 4 + 2 * self._again(1.0)
            seconds += rounds * layers * 2 * stream * self._share("tp") / self._bandwidth("tp")
        if degrees["cp"] > 1:  # keys and values of all, and their gradients back
            pairs = self._tokens * degrees["cp"] * 2 * shape.kv_heads * shape.head_size * 2 / degrees["tp"]
            seconds += (3 + self._again(1.0)) * layers * pairs * self._share("cp") / self._bandwidth("cp")
        if degrees["ep"] > 1:  # there and back, both ways
            seconds += 4 * layers * stream * max(shape.routed, 1) * self._share("ep") / self._bandwidth("ep")
        return seconds

    def _data_parallel(self, count: int) -> float:
        """Of a step with so many micro-batches."""
        shape, parallel, degrees = self.shape, self.job.parallel, axis_degrees(self.job.parallel)
        elements, seconds = shape.elements / self._split, 0.0
        if self.job.model.adapter is not None and degrees["dp_shard"] == 1:
            return 0.0
        group = degrees["dp_shard"] * degrees["cp"]
        if group > 1:
            gathers = 1 if parallel.dp_shard.reshard_after_forward is False else 2
            gathered = 2 if self.job.train.precision == "fsdp_mixed" else self._parameter_bytes
            reductions = 1 if parallel.dp_shard.no_sync else count
            moved = count * gathers * gathered * elements + reductions * 4 * elements
            seconds += moved * (group - 1) / group / self._bandwidth("dp_shard")
            if parallel.dp_shard.offload:
                seconds += count * (gathers + 2) * 4 * elements / group / (self.speed.host_gb_s * 1e9)
        if degrees["dp_replicate"] > 1:
            part = elements * self._parameter_bytes / group
            rounds = 1 if parallel.dp_replicate.no_sync or group > 1 else count
            seconds += rounds * 2 * part * self._share("dp_replicate") / self._bandwidth("dp_replicate")
        return seconds

    @property
    def _parameter_bytes(self) -> int:
        return {"float64": 8, "float32": 4}.get(self.job.model.parameter_dtype, 2)

    def _bubble(self) -> float:
        pp = self.job.parallel.pp
        if pp.degree == 1:
            return 0.0
        schedule = pipeline_schedules.SCHEDULES[pp.schedule]
        at_rank = pipeline_schedules.stage_count(pp) / pp.degree
        idle = (pp.degree - 1) / self.job.train.gradient_accumulation_steps / at_rank
        return idle * (_SPLIT_BUBBLE if schedule.splits_backward else 1)

    def _optimizer(self) -> float:
        job, degrees = self.job, axis_degrees(self.job.parallel)
        if job.model.adapter is not None:
            return 0.0
        sharded = job.parallel.dp_replicate.zero_redundancy_optimizer
        parts = self._split * degrees["dp_shard"] * degrees["cp"] * degrees["ep"]
        elements = self.shape.elements / (parts * degrees["dp_replicate"] if sharded else parts)
        step_bytes = _STEP_BYTES[bool(job.train.optimizer.arguments.get("fused"))]
        gb_s = _HOST_GB_S if job.parallel.dp_shard.offload else self.speed.memory_gb_s * MOVING
        return elements * step_bytes / (gb_s * 1e9)

    def _share(self, axis: str) -> float:
        degree: int = getattr(self.job.parallel, axis).degree
        return (degree - 1) / degree

    def _bandwidth(self, axis: str) -> float:
        """Bytes a second of a collective: by the links of the node, or the network of all its ranks in one node."""
        degrees, node = axis_degrees(self.job.parallel), self.job.cluster.gpus_per_node
        stride = 1
        for inner in ("tp", "cp", "ep", "dp_shard", "dp_replicate", "pp"):
            if inner == axis:
                break
            stride *= degrees[inner]
        degree = degrees[axis]
        if axis == "dp_shard":  # its group has the ranks of cp in it
            stride, degree = degrees["tp"], degree * degrees["cp"]
        link = self.speed.link_gb_s
        if stride * degree > node:
            link = min(link, max(node // stride, 1) * network_gb_s(self.job.cluster.gpu.name))
        return link * 1e9 * MOVING


FASTEST = 0.65
"""Of the roofline's time that a traced step is expected to take at least: those of docs/results/step-times.md take 0.69
to 1.0. An observation and no bound: what is left out by it is counted."""


class Objective(StrEnum):
    """COST ranks by the GPU time of a token: that of the traced step, or the roofline's where nobody knows the speed of
    its GPU. MEMORY ranks by the device bytes of the fullest rank, HEADROOM by what is left of it."""

    COST = "cost"
    MEMORY = "memory"
    HEADROOM = "headroom"

    def least(self, cost: float | None, bound: Bound) -> float:
        """What a plan of a candidate says at best: by a bound, of cost by the roofline and what steps were seen to
        take of it."""
        if self is Objective.COST:
            return 0.0 if cost is None else FASTEST * cost
        return bound.least_bytes if self is Objective.MEMORY else bound.least_bytes - bound.capacity_bytes

    def of(self, cost: float | None, exact: Exact) -> float:
        """What a plan says."""
        if self is Objective.COST and exact.tokens_per_second:
            return 1 / exact.tokens_per_second
        if self is Objective.COST:
            return cost or 0.0
        return exact.device_bytes if self is Objective.MEMORY else -exact.headroom_bytes


def objective_of(written: str, place: str = "--objective") -> Objective:
    """Raises SpecError with the nearest name."""
    try:
        return Objective(written)
    except ValueError:
        raise SpecError(
            f"there is no objective {written[:80]!a}",
            allowed=", ".join(Objective),
            remedy=did_you_mean(written, Objective) or "cost is the roofline's GPU time of a token",
            place=place,
        ) from None


def _is_unranked(job: Job) -> bool:
    """Whether nobody knows a time of its steps: of a job with `trainer` its plans say one, and there is no roofline."""
    return cost_of(job) is None and (job.trainer is None or speed_of(job.cluster.gpu.name) is None)


def refuse_inapplicable(objective: Objective, job: Job, place: str = "--objective") -> None:
    """Raises SpecError for an objective that says nothing of this job."""
    if objective is Objective.COST and _is_unranked(job):
        known = (
            "the speeds of its GPU are not known" if job.cluster.gpu.name == "" else "the model's sizes are not known"
        )
        raise SpecError(
            f"the objective cost does not apply: {known}, and the roofline ranks by them",
            allowed="memory, headroom",
            remedy="rank by memory: --objective memory",
            place=place,
        )


_TRACED_MICRO_BATCHES = 4
"""Of many equal ones (planner/tracing/program/micro_batches.py)."""
_RECOMPUTED = {"none": 1.0, "full": 1.35, "selective": 1.2, "every": 1.2}
_DTENSOR = 1.7
"""Operators on DTensors beside those on plain ones, by FSDP2 and TP plans of a 70B model."""


def unusual_of(job: Job) -> int:
    """How far a candidate is from what most people ask for, one kind of data parallelism with settings as they are by
    default: a second kind, tensor and expert parallelism, and settings that few change, count one each, pipelines and
    context parallelism two."""
    parallel, degrees = job.parallel, axis_degrees(job.parallel)
    return sum(
        (
            degrees["dp_replicate"] > 1 and degrees["dp_shard"] > 1,
            degrees["tp"] > 1,
            degrees["ep"] > 1,
            2 * (degrees["pp"] > 1),
            2 * (degrees["cp"] > 1),
            degrees["pp"] > 1 and parallel.pp.schedule != "1F1B",
            degrees["dp_shard"] > 1 and parallel.dp_shard.reshard_after_forward is not True,
            bool(parallel.dp_shard.offload),
            job.train.recompute.mode in ("selective", "every"),
        )
    )


def effort_of(job: Job) -> float:
    """Forward and backward passes through the whole model that are traced, weighed by what slows them down."""
    parallel, train = job.parallel, job.train
    micro_batches = train.gradient_accumulation_steps
    if parallel.pp.degree == 1:
        micro_batches = min(micro_batches, _TRACED_MICRO_BATCHES)
    passes = train.iterations * micro_batches * parallel.cp.degree  # the stages of a pipeline are one model together
    slower = _DTENSOR if parallel.tp.degree > 1 or parallel.cp.degree > 1 else 1.0
    return passes * _RECOMPUTED[train.recompute.mode] * slower


MOST_LOOKED_AT = 200_000
"""Candidates of one search; of larger spaces so many are looked at, spread evenly, and the answer says so."""
_TELL_EVERY = 500

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate that no rule and no bound leaves out."""

    least: float
    """What a plan says of the objective at best (:meth:`Objective.least`)."""
    number: int
    least_bytes: int
    capacity_bytes: int
    cost: float | None
    effort: float = 1.0
    """Of its plan, beside others."""
    unusual: int = 0
    """How few people ask for it."""

    @property
    def rank(self) -> tuple[float, int]:
        """Before or behind others."""
        return self.least, self.number


@dataclass(slots=True)
class Scales:
    """What was seen of a space."""

    size: int
    looked_at: int = 0
    ruled_out: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    """What a rule said of the first candidate that broke it."""
    beyond_bound: int = 0
    nearest_bound: tuple[int, int] | None = None
    """Of those the smallest excess, in bytes, and whose it is."""
    groups: dict[tuple[object, ...], list[Weighed]] = field(default_factory=dict)
    """Candidates that share a trace, by what decides it."""
    in_time: bool = True

    @property
    def left(self) -> int:
        """Candidates that plans decide about."""
        return sum(map(len, self.groups.values()))


def weigh(
    space: Space,
    objective: Objective,
    scales: Scales,
    progress: Progress = lambda _: None,
    most: int = MOST_LOOKED_AT,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Rules, bound and cost of each candidate, kept in `scales`. Raises SpecError if rules leave none."""
    total = min(space.size, most)
    for number in space.numbers(most):
        if scales.looked_at % _TELL_EVERY == 0:
            progress(f"looked at {scales.looked_at:,} of {total:,} candidates, {scales.left:,} may fit")
            if is_over():
                scales.in_time = False
                break
        scales.looked_at += 1
        _weigh_one(space, objective, number, scales)
    if not scales.groups and not scales.beyond_bound and scales.in_time:
        # The constraint that emptied the space.
        (worst, count), *others = scales.ruled_out.most_common(6)
        rest = ", ".join(f"{rule} ({number:,})" for rule, number in others)
        example = f": {scales.example[worst]}" if scales.example.get(worst) else ""
        raise SpecError(
            f"no candidate is left of {scales.looked_at:,}: {count:,} break the rule that {worst}{example}"
            + (f"; others: {rest}" if rest else ""),
            allowed="axes whose values go together",
            remedy="widen the axis that the rule names, or change --gpus or --global-batch",
        )
    for group in scales.groups.values():
        group.sort(key=lambda weighed: weighed.rank)


def look_at(space: Space, number: int) -> tuple[Candidate | None, str, str, Bound | None]:
    """A candidate with its lower bound; or the rule that it breaks, and what is said of that."""
    candidate = space.candidate(number)
    if isinstance(candidate, str):
        return None, candidate, "", None
    rule, explanation = broken_rule(candidate.job)
    return candidate, rule, explanation, None if rule else lower_bound(candidate.job)


def _weigh_one(space: Space, objective: Objective, number: int, scales: Scales) -> None:
    candidate, rule, explanation, bound = look_at(space, number)
    if candidate is None or bound is None:
        scales.ruled_out[rule] += 1
        if candidate is not None:
            scales.example.setdefault(rule, explanation)
        return
    if bound.exceeds:
        scales.beyond_bound += 1
        excess = bound.least_bytes - bound.capacity_bytes
        if scales.nearest_bound is None or excess < scales.nearest_bound[0]:
            scales.nearest_bound = (excess, number)
        return
    cost = cost_of(candidate.job)
    weighed = Weighed(
        least=objective.least(cost, bound),
        number=number,
        least_bytes=bound.least_bytes,
        capacity_bytes=bound.capacity_bytes,
        cost=cost,
        effort=effort_of(candidate.job),
        unusual=unusual_of(candidate.job),
    )
    scales.groups.setdefault(space.traced_key(candidate), []).append(weighed)
