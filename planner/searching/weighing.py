"""Ranks candidates without planning any: by rules, the lower bound, and the least time of a training step.

That time orders candidates and is never shown: what it counts, docs/search.md says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from planner.errors import SpecError
from planner.hardware.catalog import network_gb_s
from planner.job import pipeline_schedules
from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.bound.parameters import shape_of
from planner.job.layout import axis_degrees, tokens_of_step
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.planning.planned_classes import Progress
from planner.searching.exact_plans import Exact
from planner.searching.space import Candidate, Space, broken_rule
from planner.step_work import Kernel
from planner.timing.kernel_seconds import PricedGpu, seconds_of_collective
from planner.timing.step_time import priced_gpu


def cost_of(job: Job) -> float | None:
    """GPU seconds of a token, by what the clock of a trace takes for its products, their weights and collectives, which
    sizes say before there is one. None where the model's sizes or the GPU's speeds are not known."""
    shape, gpu, train, parallel = shape_of(job.model), priced_gpu(job.cluster.gpu.name), job.train, job.parallel
    if shape is None or gpu is None or not train.sequence_length or job.trainer is not None:
        return None
    degrees, seconds_of = axis_degrees(parallel), _collectives_of(job, gpu)
    micro_batches, split = train.gradient_accumulation_steps, degrees["tp"] * degrees["pp"]
    tokens = train.micro_batch_size * train.sequence_length // degrees["cp"]
    # Forward, backward of activations and of weights, which frozen ones have not; and what is computed again.
    passes = 3 - (job.model.adapter is not None) + (train.recompute.mode == "full")
    products = 2 * passes * shape.active_elements * tokens / gpu.product_rate("bfloat16", loses_bits=True)
    weights = gpu.seconds_of_bytes(2 * passes * shape.elements)

    stream = 2 * tokens * shape.hidden
    keys_and_values = 4 * tokens * degrees["cp"] * shape.kv_heads * shape.head_size // degrees["tp"]
    of_block = (
        2 * (passes - 1) * seconds_of("allreduce", "tp", stream)
        + passes * seconds_of("allgather", "cp", keys_and_values)
        + 4 * seconds_of("alltoall", "ep", stream * max(shape.routed, 1))
    )
    busy = micro_batches * ((products + weights) / split + of_block * shape.layers / degrees["pp"])
    if degrees["pp"] > 1:
        stages = pipeline_schedules.stage_count(parallel.pp) / degrees["pp"]
        busy *= 1 + (degrees["pp"] - 1) / micro_batches / stages

    # Of data parallelism what the computation does not hide.
    elements, held = shape.elements // split, 4 if job.model.parameter_dtype == "float32" else 2
    gathers = micro_batches * (1 if parallel.dp_shard.reshard_after_forward is False else 2)
    gathered = 2 if train.precision == "fsdp_mixed" else held
    sharding = gathers * seconds_of("allgather", "dp_shard", gathered * elements)
    reducing = micro_batches * seconds_of("reduce_scatter", "dp_shard", held * elements)
    shards = degrees["dp_shard"] * degrees["cp"]
    replicating = seconds_of("allreduce", "dp_replicate", held * elements // shards)
    step = max(busy, sharding + reducing + replicating)
    return step * math.prod(degrees.values()) / tokens_of_step(job)


def _collectives_of(job: Job, gpu: PricedGpu) -> Callable[[str, str, int], float]:
    """Seconds of a collective along an axis with so many bytes; groups lie in nodes from the inside out."""
    degrees, network = axis_degrees(job.parallel), network_gb_s(job.cluster.gpu.name)
    groups: dict[str, tuple[int, int]] = {}
    stride = 1
    for axis in ("tp", "cp", "ep", "dp_shard", "dp_replicate", "pp"):
        groups[axis] = (degrees[axis], stride)
        stride *= degrees[axis]
    groups["dp_shard"] = (degrees["dp_shard"] * degrees["cp"], degrees["tp"])  # the ranks of cp are in it

    def seconds_of(name: str, axis: str, message_bytes: int) -> float:
        kernel = Kernel(f"nccl::{name}", "", message_bytes, message_bytes, scalars=groups[axis])
        return seconds_of_collective(kernel, gpu.speed, job.cluster.gpus_per_node, network)

    return seconds_of


class Objective(StrEnum):
    """COST ranks by the GPU time of a token, MEMORY by the device bytes of the fullest rank, HEADROOM by what is left
    of it."""

    COST = "cost"
    MEMORY = "memory"
    HEADROOM = "headroom"

    def least(self, job: Job, bound: Bound) -> float:
        """What a plan of the job says at best: by a bound, of cost by an estimate."""
        if self is Objective.COST:
            return cost_of(job) or 0.0
        return bound.least_bytes - (bound.capacity_bytes if self is Objective.HEADROOM else 0)

    def of(self, exact: Exact) -> float:
        """What a plan says."""
        if self is Objective.COST:
            return 1 / exact.tokens_per_second if exact.tokens_per_second else math.inf
        return exact.device_bytes if self is Objective.MEMORY else -exact.headroom_bytes


def objective_of(written: str, place: str = "--objective") -> Objective:
    """Raises SpecError with the nearest name."""
    try:
        return Objective(written)
    except ValueError:
        raise SpecError(
            f"there is no objective {written[:80]!a}",
            allowed=", ".join(Objective),
            remedy=did_you_mean(written, Objective) or "cost is the GPU time of a token",
            place=place,
        ) from None


def refuse_inapplicable(objective: Objective, job: Job, place: str = "--objective") -> None:
    """Raises SpecError for an objective that says nothing of this job: of one with `trainer` only plans say a time."""
    is_timed = priced_gpu(job.cluster.gpu.name) is not None
    if objective is Objective.COST and (not is_timed or (cost_of(job) is None and job.trainer is None)):
        unknown = "the model's sizes" if is_timed else "the speeds of its GPU"
        raise SpecError(
            f"the objective cost does not apply: {unknown} are not known, and candidates are ranked by them",
            allowed="memory, headroom",
            remedy="rank by memory: --objective memory",
            place=place,
        )


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


MOST_LOOKED_AT = 200_000
"""Candidates of one search; of larger spaces so many are looked at, spread evenly, and the answer says so."""
_TELL_EVERY = 500


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate that no rule and no bound leaves out."""

    least: float
    """What a plan says of the objective at best (:meth:`Objective.least`)."""
    number: int
    bound: Bound
    unusual: int
    """How few people ask for it."""

    @property
    def rank(self) -> tuple[float, int]:
        """Before or behind others."""
        return self.least, self.number

    def is_likely(self, ratio: float) -> bool:
        """To fit, if a plan has so many times the bytes of the bound."""
        return self.bound.least_bytes * ratio <= self.bound.capacity_bytes


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

    def explain(self, rule: str) -> str:
        """The rule, with what was said of a candidate that broke it."""
        return f"{rule}: {self.example[rule]}" if self.example.get(rule) else rule


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
        rest = ", ".join(f"{scales.explain(rule)} ({number:,})" for rule, number in others)
        raise SpecError(
            f"no candidate is left of {scales.looked_at:,}: {count:,} break the rule that {scales.explain(worst)}"
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
    weighed = Weighed(objective.least(candidate.job, bound), number, bound, unusual_of(candidate.job))
    scales.groups.setdefault(space.traced_key(candidate), []).append(weighed)
