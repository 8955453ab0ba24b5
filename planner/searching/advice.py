"""Advice for a job that does not fit: changes that need less memory, the cheapest for the training first."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from planner.allocator.rules import Rules
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.bound.lower_bound import lower_bound
from planner.job.layout import Mesh
from planner.job.named_gpus import USUAL_NODE
from planner.job.schema import Job
from planner.job.trainer import RECOMPUTE, accumulation_steps, micro_batch_size
from planner.planning.planned_classes import Progress
from planner.report.statement import Advice, change_text
from planner.searching import trainer_axes
from planner.searching.axes import apply, axis_of, fault_of, only_new
from planner.searching.engine import search
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError, Plans, Refused, plan_in_turn
from planner.searching.space import Space, global_batch_of, least_axes
from planner.searching.weighing import Objective, cost_of

Change = dict[str, Any]
Step = tuple[Change, Job]
"""A change, and the job with it."""
Row = tuple[Change, ...]
"""Changes that are made together."""

_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch.optim with a fused implementation (torch 2.13, torch/optim)."""
_NOTICEABLY = 1.05
"""A larger GPU has so many times the memory: variants of one differ by less."""
_MOST_GPUS = 1024
_SELECTIVE: Change = {"train.recompute": "selective"}
_RECOMPUTES = {"train.recompute", RECOMPUTE}
_SIZE, _STEPS = "train.micro_batch_size", "train.gradient_accumulation_steps"


def savings(job: Job) -> list[Change]:
    """Every change that saves memory of this job, the cheapest for the training first."""
    train, parallel = job.train, job.parallel
    shard, tp, save, optimizer = parallel.dp_shard, parallel.tp, train.checkpoint_save, train.optimizer.arguments
    recompute = train.recompute.mode
    conf = ",".join(part for part in (job.allocator.conf, "expandable_segments:True") if part)
    segments = (not Rules.from_conf(job.allocator.conf).expandable_segments, {"allocator.conf": conf})
    fused: Change = {"train.optimizer.fused": True}
    if "foreach" in optimizer:
        fused["train.optimizer.foreach"] = None
    has_blocks = job.model.decoder is not None or (job.model.hf_config is not None and parallel.pp.degree == 1)
    tokens_divide = bool(train.sequence_length) and train.sequence_length % (tp.degree * parallel.cp.degree) == 0
    table: list[tuple[Any, Change]] = [
        # What a save gathers goes to the host tensor by tensor.
        (
            save is not None and save.kind == "full_state_dict" and not save.cpu_offload,
            {"train.checkpoint_save.cpu_offload": True},
        ),
        (
            parallel.dp_replicate.degree > 1,
            {"parallel.dp_replicate.gradient_as_bucket_view": True},
        ),
        segments,
        (train.optimizer.name in _FUSED and optimizer.get("foreach") is not False, fused),
        (tp.degree > 1 and tokens_divide and has_blocks, {"parallel.tp.sequence_parallel": True}),
        (
            train.loss.name == "cross_entropy" and train.loss.chunks == 1 and train.sequence_length >= 8,
            {"train.loss.chunks": 8},
        ),
        (shard.degree > 1, {"parallel.dp_shard.reshard_after_forward": True}),
        (recompute == "none", _SELECTIVE),
        (recompute != "full", {"train.recompute": "full"}),
    ]
    if job.trainer is not None:
        table = [segments, (not trainer_axes.checkpoints(job), {RECOMPUTE: True})]
    return [change for applies, change in table if applies and only_new(job, change)]


def single(job: Job) -> list[Step]:
    """Each change by itself."""
    return [(change, apply(job, change)) for change in savings(job)]


def rows(job: Job, refused: Set[str]) -> Iterator[Row]:
    """One change more with every row, the cheapest for the training first, smaller micro-batches last; `refused` are
    keys that this job cannot be run with at any value."""
    # Full recomputation includes the selective one.
    parts = [change for change in savings(job) if change != _SELECTIVE and not refused & change.keys()]
    for count in range(len(parts)):
        yield tuple(parts[: count + 1])
    for smaller, _ in smaller_micro_batches(job):
        yield (*parts, smaller)


def together(start: Step, row: Row) -> Step:
    """The changes of a row on top of another."""
    more = {key: value for part in row for key, value in part.items()}
    return {**start[0], **more}, apply(start[1], more)


def smaller_micro_batches(job: Job) -> Iterator[Step]:
    """Half the micro-batch and twice the accumulation, as often as it goes: the same global batch."""
    size, steps = micro_batch_size(job), accumulation_steps(job)
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        change = _sized(job, size, steps)
        yield change, apply(job, change)


def _sized(job: Job, size: int, steps: int) -> Change:
    """The change to micro-batches of this size, so many to a step."""
    return {trainer_axes.key_of(job, key): value for key, value in ((_SIZE, size), (_STEPS, steps))}


def _recomputed(job: Job) -> Change:
    return {RECOMPUTE: True} if job.trainer is not None else {"train.recompute": "full"}


def larger_gpus(job: Job) -> Iterator[Step]:
    """GPUs of the same vendor with more memory, the smallest first; none whose host is another kind of machine."""
    own = job.cluster.gpu
    larger = [gpu for gpu in catalog.gpus().values() if gpu.total_bytes > _NOTICEABLY * own.total_bytes]
    for gpu in sorted(larger, key=lambda gpu: gpu.total_bytes):
        if gpu.arch[:2] == own.arch[:2] and gpu.pool is None and not gpu.note:
            yield from _steps(job, {"cluster.gpu": gpu.name})


def larger_slices(job: Job) -> Iterator[Step]:
    """Of a MIG slice the larger ones of its GPU, and all of it, the smallest first."""
    own = catalog.by_name(job.cluster.gpu.name)
    if own is not None and own.slice:
        for part in catalog.parts_with(own, _NOTICEABLY * own.total_bytes):
            yield from _steps(job, {"cluster.gpu": part.name})


def more_gpus(job: Job) -> Iterator[Step]:
    """Twice the GPUs and so on, with and without recomputation: parameters, gradients and state are sharded over all
    that have samples of their own. The global batch stays where it can be divided."""
    cluster, parallel, train = job.cluster, job.parallel, job.train
    data = parallel.dp_replicate.degree * parallel.dp_shard.degree
    times = 2
    while (gpus := cluster.ranks * times) <= _MOST_GPUS:
        per_node = min(gpus, max(USUAL_NODE, cluster.gpus_per_node)) if cluster.nodes == 1 else cluster.gpus_per_node
        if gpus % per_node:
            per_node = cluster.gpus_per_node
        change: Change = {"cluster.nodes": gpus // per_node, "cluster.gpus_per_node": per_node}
        if job.trainer is None:  # which its files shard over all ranks there are, or do not
            change |= {"parallel.dp_replicate.degree": 1, "parallel.dp_shard.degree": data * times}
            if train.precision == "bf16_autocast":
                change["train.precision"] = "fsdp_mixed"
        share, left = divmod(micro_batch_size(job) * accumulation_steps(job), times)
        if not left and parallel.pp.degree == 1:
            size = math.gcd(share, micro_batch_size(job))
            change |= _sized(job, size, share // size)
        yield from _steps(job, change, {**change, **_recomputed(job)})
        times *= 2


def adapters(job: Job, kind: str) -> Iterator[Step]:
    """LoRA (`lora`, or `qlora` beside a model in four bits) in the place of training every parameter: by itself, and
    with recomputation."""
    if job.model.hf_config is None or (job.model.adapter is not None and job.model.adapter.kind in (kind, "qlora")):
        return
    if job.trainer is not None:
        change = {} if kind == "qlora" else trainer_axes.adapter_change(job)
    else:
        half = "float16" if job.train.precision == "fp16_autocast" else "bfloat16"
        change = {"model.adapter": {"kind": kind, "r": 16}, "model.parameter_dtype": half}
    if change:
        yield from _steps(job, change, {**change, **_recomputed(job)})


def _steps(job: Job, *wanted: Change) -> Iterator[Step]:
    """Changes that the rules of a spec allow, without what the job has already; each once."""
    earlier: list[Change] = []
    for new in (only_new(job, change) for change in wanted):
        changed = apply(job, new)
        if fault_of(changed) is None and new not in earlier:
            yield new, changed
        earlier.append(new)


USUAL_SECONDS = 20.0
_LAYOUTS = 2
"""Other layouts that are said."""
_TOGETHER, _LAYOUTS_NAME = "several of these changes together", "other layouts of these GPUs"
"""Names of what is left where the time is over."""
_STEPS_SHARE, _LAYOUTS_SHARE = 0.5, 0.75
"""Of the time, until changes of the job in its own layout, and other layouts, have to be tried."""


@dataclass(slots=True)
class Advised:
    """What was found, and what was tried for it."""

    advice: tuple[Advice, ...] = ()
    planned: int = 0
    by_bound: int = 0
    """Changes that cannot help: parameters, state and saved activations alone are too much."""
    layouts: int = 0
    """Candidates with another layout that were looked at."""
    closest: tuple[Change, Exact] | None = None
    """Of what does not fit, the change that lacks the fewest bytes."""
    tried: list[str] = field(default_factory=list)
    """What was planned."""
    not_planned: list[str] = field(default_factory=list)
    """What would have been planned, had there been time."""
    excluded: list[tuple[Change, int]] = field(default_factory=list)
    """Of each kind of change the strongest that the bound excludes, with the bytes that it takes at least."""


def advise(
    job: Job,
    plans: Plans,
    *,
    progress: Progress = lambda _: None,
    seconds: float = USUAL_SECONDS,
    widely: bool = True,
    frees_cache: bool = False,
) -> Advised:
    """The single changes that make a job fit that does not, the cheapest for the training tried first; where none does
    alone, the cheapest changes that do so together.

    `widely`: where none of those does, other layouts of its GPUs; and where none of those does, larger GPUs, more of
    them, and adapters, each with other changes where it is not enough alone. `seconds` divide the time between them;
    the deadline itself is that of `plans`. `frees_cache`: the job fits, but only by freeing its allocator's cache; the
    cheapest change that makes this needless, without computing anything twice.
    """
    trial = _Trial(job, plans, progress, frees_cache=frees_cache)
    advised, began = trial.advised, time.monotonic()
    if frees_cache:
        trial.find_first(step for step in single(job) if not _RECOMPUTES & step[0].keys())
        return advised
    trial.find_first(larger_slices(job))
    if not trial.nothing_helps():
        trial.try_singles()
        until = float("inf") if advised.advice else began + seconds * _STEPS_SHARE
        if advised.advice or not trial.surely_exceeds_with_all():
            trial.find_first(smaller_micro_batches(job), until)
            if not advised.advice and not trial.combine(trial.own):
                # Fewer changes may fit where all of them do not: an allocator's cache is not a sum.
                row_by_row = (together(trial.own, row) for row in rows(job, trial.refused))
                trial.find_first(row_by_row, until, left=_TOGETHER)
    if widely and not advised.advice and Mesh.of(job.parallel).world_size > 1:
        trial.search_layouts(began + seconds * _LAYOUTS_SHARE)
    if widely and not advised.advice:
        # What keeps the training as it is first; each is answered by itself.
        for wider in (larger_gpus(job), more_gpus(job), adapters(job, "lora"), adapters(job, "qlora")):
            steps = list(wider)
            if not trial.find_first(steps):
                trial.find_first_combined([step for step in steps if not _RECOMPUTES & step[0].keys()])
    return advised


@dataclass(slots=True)
class _Trial:
    """Plans changes of one job, and keeps those that are enough. Where the time is over it goes on without plans, and
    notes what it would have planned."""

    job: Job
    plans: Plans
    progress: Progress
    frees_cache: bool = False
    advised: Advised = field(default_factory=Advised)
    refused: set[str] = field(default_factory=set)
    """Keys whose change this job cannot be run with at any size: a model without blocks has none to recompute."""
    answers: dict[str, Answer] = field(default_factory=dict)
    """By the text of a change."""

    @property
    def own(self) -> Step:
        """The job as it is."""
        return {}, self.job

    def nothing_helps(self) -> bool:
        """With all changes at once it exceeds by its bound: so it does with any of them."""
        step = self.with_all(self.own)
        if not step[0] or not self.exceeds_by_bound(step):
            return False
        self._exclude(step)
        return True

    def surely_exceeds_with_all(self) -> bool:
        """With all changes at once the tensors are more than there is room for: so it is with fewer of them. Where it
        cannot be run with all of them, it is not known yet with which of them it can."""
        step = self.with_all(self.own)
        answer = self.plan([step])[0] if step[0] else None
        return isinstance(answer, Exact) and answer.surely_exceeds

    def with_all(self, start: Step) -> Step:
        """All changes on top of another."""
        *_, everything = ((), *rows(start[1], self.refused))
        return together(start, everything)

    def try_singles(self) -> None:
        """Each change by itself; all that fit are advice."""
        steps = [step for step in single(self.job) if not self.exceeds_by_bound(step)]
        for (change, _), answer in zip(steps, self.plan(steps), strict=True):
            if answer is None:
                self._leave(change_text(change))
            elif isinstance(answer, Refused):
                self.refused.update(change)
            elif advice := self.advice_of(change, answer):
                self.advised.advice += (advice,)

    def plan(self, steps: Iterable[Step]) -> list[Answer | None]:
        """What plans say of them, several planned at a time; each change is planned once. None: there was no time."""
        steps = list(steps)

        def waiting() -> Iterator[tuple[tuple[str, Change], list[Job]]]:
            for change, job in steps:
                if (name := change_text(change)) not in self.answers:
                    self.progress(f"trying {name}")
                    yield (name, change), [job]

        try:
            for (name, change), (answer,) in plan_in_turn(self.plans, partial(next, waiting(), None), whole=True):
                self.advised.planned += 1
                self.advised.tried.append(name)
                self.answers[name] = answer
                if isinstance(answer, Exact) and not answer.fits:
                    self._remember(change, answer)
        except OutOfTimeError:
            pass
        return [self.answers.get(change_text(change)) for change, _ in steps]

    def prove(self, step: Step) -> Advice | None:
        """The change as advice, where a plan shows that it is enough."""
        return None if self.exceeds_by_bound(step) else self.advice_of(step[0], self.plan([step])[0])

    def find_first(self, steps: Iterable[Step], until: float = float("inf"), left: str = "") -> bool:
        """Those up to the first that is enough, one after the other; whether one is. `left` names those for which
        there is no time (default: their changes)."""
        excluded = None
        for step in steps:
            if self.exceeds_by_bound(step):
                excluded = step
                continue
            answer = self.plan([step])[0] if time.monotonic() < until else None
            if answer is None:
                self._leave(left or change_text(step[0]))
            elif advice := self.advice_of(step[0], answer):
                self.advised.advice += (advice,)
                return True
        self._exclude(excluded)
        return False

    def combine(self, start: Step) -> bool:
        """On top of a change, the cheapest others with which the job fits; whether there are any.

        The shortest row that fits is found by halving. Then each of its changes that is not needed is left away, the
        dearest first. Where the time is over before that, what was proven last is the advice.
        """
        proven: Advice | None = None

        def fits(row: Row) -> bool:
            nonlocal proven
            if (found := self.prove(together(start, row))) is not None:
                proven = found
            return found is not None

        chain = list(rows(start[1], self.refused))
        if chain and fits(chain[-1]):
            row = chain[bisect_left(chain, True, hi=len(chain) - 1, key=fits)]
            for part in reversed(row[:-1]):
                fewer = tuple(other for other in row if other is not part)
                row = fewer if fits(fewer) else row
        if chain and self.plans.is_over:
            self._leave(_fewer(start[0]) if proven is not None else _TOGETHER)
        if proven is not None:
            self.advised.advice += (proven,)
        return proven is not None

    def find_first_combined(self, steps: Sequence[Step]) -> None:
        """The first of steps, each of which leaves more room than those before it, that fits with other changes."""

        def fits_with_all(step: Step) -> bool:
            return self.prove(self.with_all(step)) is not None

        if (place := bisect_left(steps, True, key=fits_with_all)) < len(steps):
            self.combine(steps[place])
        elif steps and self.plans.is_over and not lower_bound(self.with_all(steps[-1])[1]).exceeds:
            self._leave(f"{', '.join(steps[0][0])} with other changes")

    def search_layouts(self, until: float) -> None:
        """Other layouts of the same GPUs, the cheapest first where the model's sizes say which."""
        job, advised = self.job, self.advised
        gpus, per_node = job.cluster.ranks, job.cluster.gpus_per_node
        if self.plans.is_over:
            self._leave(_LAYOUTS_NAME)
            return
        try:
            axes = least_axes(job, gpus, per_node)
            if job.model.adapter is None:
                axes.append(axis_of("offload", list(dict.fromkeys([job.parallel.dp_shard.offload, "cpu"]))))
            space = Space.varying(job, axes, global_batch_of(job))
            self.progress(f"trying {space.size:,} candidates with other layouts")
            result = search(
                space, self.plans, objective=Objective.MEMORY if cost_of(job) is None else Objective.COST,
                top=_LAYOUTS, any_fit=True, progress=self.progress, until=until,
            )  # fmt: skip
        except SpecError:
            return
        advised.planned += result.planned
        advised.by_bound += result.scales.beyond_bound
        advised.layouts = result.scales.looked_at
        advised.tried += [f"{result.planned:,} of {space.size:,} candidates with other layouts"] * bool(result.planned)
        if result.stopped:
            self._leave(_LAYOUTS_NAME)
        if result.closest is not None:
            self._remember(result.closest.candidate.change, result.closest.exact)
        for row in result.rows:
            if advice := self.advice_of(row.candidate.change, row.exact):
                advised.advice += (advice,)

    def advice_of(self, change: Change, answer: Answer | None) -> Advice | None:
        """The change as advice, where it is enough."""
        if not isinstance(answer, Exact) or not answer.fits or (self.frees_cache and answer.cache_releases):
            return None
        return Advice(change=change, device_bytes=answer.device_bytes, verdict=answer.verdict)

    def _leave(self, what: str) -> None:
        if what not in self.advised.not_planned:
            self.advised.not_planned.append(what)

    def _remember(self, change: Change, exact: Exact) -> None:
        """What a plan said of something that does not fit."""
        closest = self.advised.closest
        if exact.whole and (closest is None or exact.headroom_bytes > closest[1].headroom_bytes):
            self.advised.closest = (change, exact)

    def exceeds_by_bound(self, step: Step) -> bool:
        exceeds = lower_bound(step[1]).exceeds
        self.advised.by_bound += exceeds
        return exceeds

    def _exclude(self, step: Step | None) -> None:
        if step is not None:
            self.advised.excluded.append((step[0], lower_bound(step[1]).least_bytes))


def _fewer(change: Change) -> str:
    """What is left where changes together were proven, and fewer of them were not planned."""
    return f"fewer changes besides {', '.join(change)}" if change else "fewer of these changes together"
