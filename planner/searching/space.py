"""A space of candidates: every combination of the values of its axes, and the constraints between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import SpecError
from planner.job.layout import AXES as DEGREES
from planner.job.layout import axis_degrees
from planner.job.schema import Job
from planner.job.trainer import accumulation_steps, micro_batch_size, ranks_with_samples
from planner.searching import trainer_axes
from planner.searching.axes import Axis, Change, apply, axis_of, fault_of, only_new, value_at


def layouts(gpus: int, fixed: Mapping[str, Sequence[int]], axes: Sequence[str] = DEGREES) -> Iterator[dict[str, int]]:
    """Degrees of every axis whose product is `gpus`; of a `fixed` axis only the degrees that it allows."""
    if not axes:
        if gpus == 1:
            yield {}
        return
    axis, *others = axes
    for degree in divisors(gpus):
        if axis not in fixed or degree in fixed[axis]:
            yield from ({axis: degree, **rest} for rest in layouts(gpus // degree, fixed, others))


def divisors(number: int) -> list[int]:
    """Ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


LAYOUT = "layout"
UNTRACED = ("allocator", "gpu")
"""Axes that leave the trace as it is (of GPUs, those of one architecture)."""
_MIXED_BF16 = ("bf16_autocast", "fsdp_mixed")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One point of a space."""

    index: int
    choice: tuple[int, ...]
    written: Change
    """The keys that its axes say, and those that follow."""
    job: Job
    base: Job

    @property
    def change(self) -> dict[str, Any]:
        """What is different from the job that the search began with."""
        return only_new(self.base, self.written)

    def describe(self) -> str:
        """The layout in words, then whatever else is different from the job."""
        degrees = axis_degrees(self.job.parallel)
        hidden = (*(f"parallel.{axis}.degree" for axis in degrees), "cluster.nodes", "cluster.gpus_per_node")
        others = (f"{key}: {_shown(value)}" for key, value in self.change.items() if key not in hidden)
        return "; ".join([_layout_text(degrees), *others])


def _layout_text(degrees: Mapping[str, int]) -> str:
    return " ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one GPU"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "none" if value in ("", None) else str(value)


_RUN = 128
"""Neighbours that are looked at one after the other: they share most of the work of making them."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The candidates, counted through; what one of them is follows from its number."""

    base: Job
    axes: tuple[Axis, ...]
    global_batch: int = 0
    """Sequences of an optimizer step over all ranks, which micro-batches and ranks share; 0: as it comes."""
    kept: list[tuple[int, Job]] = field(default_factory=list, repr=False, compare=False)
    """Of the candidate that was made last: the value of each axis, and the job with those up to it."""

    @classmethod
    def varying(cls, base: Job, axes: Iterable[Axis], global_batch: int = 0) -> Space:
        """Of this job, in whose words the axes are written. Raises SpecError for one that it cannot be varied in."""
        written = tuple(trainer_axes.in_words_of(base, axis) for axis in axes)
        return cls(base=base, axes=written, global_batch=global_batch)

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return math.prod(len(axis.values) for axis in self.axes)

    def numbers(self, most: int) -> Iterator[int]:
        """The candidates' numbers; of a space with more than `most`, so many of them. Those that come first are spread
        evenly over it, however many they are: by steps of the golden section, from one run of neighbours to another."""
        size = self.size
        run = _RUN if size <= most else 1
        runs = -(-size // run)
        stride = max(round(_GOLDEN * runs), 1)
        while math.gcd(stride, runs) != 1:
            stride += 1
        for turn in range(min(runs, most)):
            first = turn * stride % runs * run
            yield from range(first, min(first + run, size))

    def choice(self, number: int) -> tuple[int, ...]:
        """Which value of each axis the candidate has; the last axis turns fastest."""
        choice = []
        for axis in reversed(self.axes):
            number, value = divmod(number, len(axis.values))
            choice.append(value)
        return tuple(reversed(choice))

    def labels(self, number: int) -> tuple[str, ...]:
        """How people see the value of each axis."""
        return tuple(axis.labels[value] for axis, value in zip(self.axes, self.choice(number), strict=True))

    def candidate(self, number: int) -> Candidate | str:
        """The candidate, or the name of the rule that keeps it from being one."""
        choice = self.choice(number)
        written: dict[str, Any] = {}
        for axis, value in zip(self.axes, choice, strict=True):
            written.update(axis.values[value])
        # Asked of what is written, since most candidates of a large space end here.
        if self._is_idle(written):
            return IDLE
        job = self._applied(choice)
        followed = self._following(job)
        if isinstance(followed, str):
            return followed
        if followed:
            job = apply(job, followed)
            written |= followed
        return Candidate(number, choice, written, job, self.base)

    def traced_key(self, candidate: Candidate) -> tuple[object, ...]:
        """The same for candidates that share a trace."""
        traced = (value for axis, value in zip(self.axes, candidate.choice, strict=True) if axis.name not in UNTRACED)
        return (*traced, candidate.job.cluster.gpu.arch)

    def _is_idle(self, written: Mapping[str, Any]) -> bool:
        """Whether a setting is varied that means nothing here: it would be the same candidate again."""
        for path, (usual, axis) in _MEANT_FOR.items():
            if path in written and written[path] != usual and written.get(axis, value_at(self.base, axis)) == 1:
                is_offered = any(value.get(path, _NOTHING) == usual for axis in self.axes for value in axis.values)
                return written[path] != value_at(self.base, path) or is_offered
        return False

    def _applied(self, choice: tuple[int, ...]) -> Job:
        """The job with these values. Of neighbours all but the last axes are the same, so what they make is kept."""
        kept = self.kept
        depth = 0
        while depth < len(kept) and kept[depth][0] == choice[depth]:
            depth += 1
        del kept[depth:]
        job = kept[-1][1] if kept else self.base
        for axis, value in zip(self.axes[depth:], choice[depth:], strict=True):
            job = apply(job, axis.values[value])
            kept.append((value, job))
        return job

    def _following(self, job: Job) -> Change | str:
        """What follows from the axes: the accumulation that keeps the global batch, the precision's kind, stages."""
        change: dict[str, Any] = {}
        if self._varies(*DEGREES):
            # Data parallelism takes what the other axes leave.
            replicates = job.parallel.dp_replicate.degree > 1 and job.parallel.dp_shard.degree == 1
            axis = "dp_replicate" if replicates else "dp_shard"
            degrees = axis_degrees(job.parallel)
            others = math.prod(degrees.values()) // degrees[axis]
            gpus = job.cluster.ranks
            if not self._varies(axis) and gpus % others:
                return DIVIDES
            change[f"parallel.{axis}.degree"] = degrees[axis] if self._varies(axis) else gpus // others
            job = apply(job, change)
        if self.global_batch:
            at_once = micro_batch_size(job) * data_ranks(job)
            if self.global_batch % at_once:
                return GLOBAL_BATCH
            change[trainer_axes.key_of(job, "train.gradient_accumulation_steps")] = self.global_batch // at_once
        if not self._varies(LAYOUT, *DEGREES) or job.trainer is not None:
            return change
        if self.base.train.precision in _MIXED_BF16 and not self._varies("precision"):
            degrees = axis_degrees(job.parallel)
            shards = degrees["dp_shard"] * degrees["cp"] * degrees["ep"] > 1
            change["train.precision"] = "fsdp_mixed" if shards else "bf16_autocast"
        if job.parallel.pp.split and job.parallel.pp.degree != self.base.parallel.pp.degree:
            change["parallel.pp.split"] = []
        return change

    def _varies(self, *names: str) -> bool:
        return any(axis.name in names for axis in self.axes)


DIVIDES = "the degrees divide the number of GPUs"
IDLE = "a setting is varied only where its axis of parallelism has ranks"
_MEANT_FOR: Mapping[str, tuple[Any, str]] = {
    "parallel.tp.sequence_parallel": (False, "parallel.tp.degree"),
    "parallel.pp.schedule": ("1F1B", "parallel.pp.degree"),
    "parallel.dp_shard.reshard_after_forward": (True, "parallel.dp_shard.degree"),
    "parallel.dp_shard.offload": ("", "parallel.dp_shard.degree"),
    "parallel.dp_replicate.gradient_as_bucket_view": (False, "parallel.dp_replicate.degree"),
}
"""Settings with their usual values, and the degree without which they mean nothing."""
_NOTHING = object()
GLOBAL_BATCH = "micro-batches times data ranks divide the global batch"


def data_ranks(job: Job) -> int:
    """Ranks that take different samples."""
    if job.trainer is not None:
        return ranks_with_samples(job)
    degrees = axis_degrees(job.parallel)
    return degrees["dp_replicate"] * degrees["dp_shard"] * degrees["ep"]


def global_batch_of(job: Job) -> int:
    """Sequences of an optimizer step."""
    return micro_batch_size(job) * accumulation_steps(job) * data_ranks(job)


def layout_axis(gpus: int, per_node: int, fixed: Mapping[str, Sequence[int]], base: Job) -> Axis:
    """All layouts of so many GPUs. Raises SpecError if the fixed degrees leave none, or the job's files lay it out."""
    cluster = {"cluster.nodes": gpus // per_node, "cluster.gpus_per_node": per_node}
    if base.trainer is not None:
        if fixed:
            raise trainer_axes.refusal(next(iter(fixed)))
        return Axis(LAYOUT, (cluster,), (f"{gpus} GPUs" if gpus > 1 else "one GPU",))
    allowed = {**_only_possible(base), **fixed}
    allowed.setdefault("tp", range(1, per_node + 1))  # its traffic is for the links of a node
    possible = list(layouts(gpus, allowed))
    if not possible:
        wanted = ", ".join(f"{axis} {'/'.join(map(str, degrees))}" for axis, degrees in fixed.items())
        raise SpecError(
            f"no layout of {gpus} GPUs has {wanted or 'degrees that this job can have'}",
            allowed=f"degrees whose product is {gpus}",
            remedy="change --gpus or the degrees",
        )
    changes: list[Change] = [
        {f"parallel.{axis}.degree": degree for axis, degree in degrees.items()} | cluster for degrees in possible
    ]
    return Axis(LAYOUT, tuple(changes), tuple(map(_layout_text, possible)))


def _only_possible(base: Job) -> dict[str, Sequence[int]]:
    """Axes that this job cannot have: no constraint would let any degree but 1 pass."""
    config = base.model.hf_config or {}
    impossible: set[str] = set()
    if not any(config.get(name) for name in ("num_local_experts", "num_experts", "n_routed_experts")):
        impossible.add("ep")
    if not base.train.sequence_length:
        impossible |= {"cp", "pp"}
    if base.model.factory:
        impossible |= {"pp", "tp"}
    return dict.fromkeys(impossible, (1,))


def usual_axes(
    base: Job, gpus: int, per_node: int, global_batch: int, fixed: Mapping[str, Sequence[int]]
) -> list[Axis]:
    """What a search varies if nobody says more: layouts, and settings that leave the training as it is. Raises
    SpecError for degrees that no layout has."""
    axes = _recompute_of_trainer(base)
    if base.trainer is None:
        axes = [axis_of("recompute", ["none", "selective", "full"]), axis_of("reshard_after_forward", [True, False])]
        if base.train.sequence_length:
            axes += [axis_of("sequence_parallel", [False, True]), axis_of("schedule", ["1F1B", "Interleaved1F1B"])]
    sizes = [size for size in divisors(global_batch) if size & (size - 1) == 0 and size <= _LARGEST_MICRO_BATCH]
    return [layout_axis(gpus, per_node, fixed, base), *axes, axis_of("micro_batch_size", sizes), allocator_axis(base)]


def least_axes(base: Job, gpus: int, per_node: int) -> list[Axis]:
    """What saves memory and leaves the training as it is: whether a job fits at all is decided among these."""
    axes = _recompute_of_trainer(base)
    if base.trainer is None:
        own = value_at(base, "train.recompute")
        recompute = [own] if own == "full" else [own, "full"]
        changes = tuple({"train.recompute": value} for value in recompute)
        axes = [Axis("recompute", changes, ("own", "full")[: len(recompute)])]
        if base.train.sequence_length:
            axes.append(axis_of("sequence_parallel", [False, True]))
    sizes = axis_of("micro_batch_size", list(dict.fromkeys([1, micro_batch_size(base)])))
    return [layout_axis(gpus, per_node, {}, base), *axes, sizes, allocator_axis(base)]


def _recompute_of_trainer(base: Job) -> list[Axis]:
    """What the files of a job with `trainer` may vary beside its batch; nothing where they recompute already."""
    is_varied = base.trainer is not None and not trainer_axes.checkpoints(base)
    return [axis_of("recompute", ["none", "full"])] if is_varied else []


def allocator_axis(base: Job) -> Axis:
    """The job's own setting, and expandable segments beside it."""
    conf = base.allocator.conf
    with_segments = ",".join(filter(None, (conf, "expandable_segments:True")))
    return axis_of("allocator", [conf] if "expandable_segments" in conf else [conf, with_segments])


_LARGEST_MICRO_BATCH = 64

Rule = Callable[[Job], bool]
"""Whether the job keeps it."""


def broken_rule(job: Job) -> tuple[str, str]:
    """The name of the first rule that the job breaks, and what is said of it; two empty texts if it keeps all."""
    fault = fault_of(job)
    if fault is not None:
        return SPEC, fault.problem
    return next((name for name, keeps in RULES.items() if job.trainer is None and not keeps(job)), ""), ""


SPEC = "the job keeps the rules of a spec"


def _heads(job: Job) -> bool:
    degree, config = job.parallel.tp.degree, job.model.hf_config
    if degree == 1 or config is None:
        return True
    heads = config.get("num_attention_heads") or config.get("n_head")
    names = ("num_key_value_heads", "intermediate_size", "vocab_size")
    return all(size % degree == 0 for size in (heads, *map(config.get, names)) if type(size) is int)


RULES: dict[str, Rule] = {
    "tensor parallelism stays inside of a node": lambda job: job.parallel.tp.degree <= job.cluster.gpus_per_node,
    "tp divides the heads, the key-value heads, the feed-forward and the vocabulary": _heads,
}
"""Beside those of a spec."""
