"""Advice for a job that does not fit: changes that need less memory, the cheapest for the training first."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from planner.allocator.rules import Rules
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.bound.lower_bound import lower_bound
from planner.job.layout import Mesh
from planner.job.named_gpus import USUAL_NODE
from planner.job.schema import Job, Optimizer, PostTraining, Recompute, Rollout, TrainerOffload
from planner.report.statement import Advice, change_text
from planner.searching.axes import apply, axis_of, fault_of, only_new
from planner.searching.engine import search
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.space import Space, global_batch_of, least_axes
from planner.searching.weighing import Objective, cost_of

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


USUAL_SECONDS = 20.0
_LAYOUTS = 2
"""Other layouts that are said."""
_STEPS_SHARE, _LAYOUTS_SHARE = 0.5, 0.75
"""Of the time, until changes of the job in its own layout, and other layouts, have to be tried."""

Progress = Callable[[str], None]


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
    in_time: bool = True
    tried: list[str] = field(default_factory=list)
    excluded: list[tuple[Change, int]] = field(default_factory=list)
    """Of each kind of change the strongest that the bound excludes, with the bytes that it takes at least."""


def advise(
    job: Job,
    plans: Plans,
    *,
    progress: Progress = lambda _: None,
    seconds: float = USUAL_SECONDS,
    widely: bool = True,
) -> Advised:
    """The single changes that make a job fit that does not; where none does alone, the shortest row of them that does.

    `widely`: where none of those does, other layouts of its GPUs; and where none of those does, larger GPUs, more of
    them, and adapters. `seconds` divide the time between them; the deadline itself is that of `plans`.
    """
    trial = _Trial(job, plans, progress)
    began = time.monotonic()
    try:
        _try_own_layout(trial, began + seconds * _STEPS_SHARE)
        if widely and not trial.found.advice and Mesh.of(job.parallel).world_size > 1:
            _try_other_layouts(trial, began + seconds * _LAYOUTS_SHARE)
        if widely and not trial.found.advice:
            _try_more(trial)
    except OutOfTimeError:
        trial.found.in_time = False
    return trial.found


def _try_own_layout(trial: _Trial, end: float) -> None:
    job = trial.job
    if trial.nothing_helps():
        return
    trial.all_that_fit(single(job))
    trial.first_that_fits(smaller_micro_batches(job), end)
    if not trial.found.advice:
        trial.first_that_fits(rows(job, trial.refused), end)


def _try_more(trial: _Trial) -> None:
    """What keeps the training as it is first; each is answered by itself."""
    job = trial.job
    trial.first_that_fits(larger_gpus(job))
    trial.first_that_fits(more_gpus(job))
    for kind in ("lora", "qlora"):
        trial.first_that_fits(adapters(job, kind, trial.refused))


@dataclass(slots=True)
class _Trial:
    """Plans changes of one job, and keeps those that fit."""

    job: Job
    plans: Plans
    progress: Progress
    found: Advised = field(default_factory=Advised)
    refused: set[str] = field(default_factory=set)
    """Keys whose change this job cannot be run with at any size: a model without blocks has none to recompute."""

    def nothing_helps(self) -> bool:
        """With all changes at once the tensors are more than there is room for: so it is with any of them."""
        *_, everything = (None, *rows(self.job, ()))
        if everything is None:
            return False
        if self._exceeds_by_bound(everything):
            self._exclude(everything)
            return True
        known = set(self.refused)
        answer = self._answer(everything, self._submit(everything))
        self.refused = known  # which of all of them it cannot be run with, is not known yet
        return isinstance(answer, Exact) and answer.surely_exceeds

    def all_that_fit(self, steps: Iterable[Step]) -> None:
        """Several are planned at a time."""
        begun = [(step, self._submit(step)) for step in steps if not self._exceeds_by_bound(step)]
        for step, future in begun:
            self._keep(step, self._answer(step, future))

    def first_that_fits(self, steps: Iterable[Step], until: float = float("inf")) -> None:
        excluded = None
        for step in steps:
            if time.monotonic() >= until:
                self.found.in_time = False
                break
            if self._exceeds_by_bound(step):
                excluded = step
            elif self._keep(step, self._answer(step, self._submit(step))):
                return
        self._exclude(excluded)

    def tell(self, what: str) -> None:
        self.found.tried.append(what)
        self.progress(f"trying {what}")

    def remember(self, change: Change, exact: Exact) -> None:
        """What a plan said of something that does not fit."""
        closest = self.found.closest
        if exact.whole and (closest is None or exact.headroom_bytes > closest[1].headroom_bytes):
            self.found.closest = (change, exact)

    def _submit(self, step: Step) -> Future[tuple[Answer, ...]]:
        self.tell(change_text(step[0]))
        return self.plans.submit([step[1]], whole=True)

    def _answer(self, step: Step, future: Future[tuple[Answer, ...]]) -> Answer:
        (answer,) = future.result()
        self.found.planned += 1
        if isinstance(answer, Refused):
            self.refused.update(step[0])
        elif not answer.fits:
            self.remember(step[0], answer)
        return answer

    def _keep(self, step: Step, answer: Answer) -> bool:
        """Whether the job fits with the change; it does not, if it cannot be run with it."""
        if isinstance(answer, Refused) or not answer.fits:
            return False
        self.found.advice += (Advice(change=step[0], device_bytes=answer.device_bytes, verdict=answer.verdict),)
        return True

    def _exceeds_by_bound(self, step: Step) -> bool:
        exceeds = lower_bound(step[1]).exceeds
        self.found.by_bound += exceeds
        return exceeds

    def _exclude(self, step: Step | None) -> None:
        if step is not None:
            self.found.excluded.append((step[0], lower_bound(step[1]).least_bytes))


def _try_other_layouts(trial: _Trial, end: float) -> None:
    """Other layouts of the same GPUs, the cheapest by the roofline first where it knows the model."""
    job = trial.job
    gpus, per_node = job.cluster.nodes * job.cluster.gpus_per_node, job.cluster.gpus_per_node
    try:
        axes = least_axes(job, gpus, per_node)
        if job.parallel.deepspeed is None and job.model.adapter is None:
            axes.append(
                axis_of("offload", [job.parallel.dp_shard.offload, "cpu"][job.parallel.dp_shard.offload == "cpu" :])
            )
        space = Space(base=job, axes=tuple(axes), global_batch=global_batch_of(job))
        objective = Objective.MEMORY if cost_of(job) is None else Objective.COST
        trial.tell(f"{space.size:,} candidates with other layouts")
        plans = _Until(trial.plans, end)
        found = search(space, plans, objective=objective, top=_LAYOUTS, any_fit=True, progress=trial.progress)
    except SpecError:
        return
    trial.found.planned += found.planned
    trial.found.by_bound += found.scales.beyond_bound
    trial.found.layouts = found.scales.looked_at
    trial.found.in_time = trial.found.in_time and not found.stopped
    if found.closest is not None:
        trial.remember(found.closest.candidate.change, found.closest.exact)
    for row in found.rows:
        trial.found.advice += (
            Advice(change=row.candidate.change, device_bytes=row.exact.device_bytes, verdict=row.exact.verdict),
        )


@dataclass(frozen=True, slots=True)
class _Until:
    """Plans until a part of the time is over."""

    plans: Plans
    end: float
    """By time.monotonic()."""

    @property
    def processes(self) -> int:
        return self.plans.processes

    @property
    def is_over(self) -> bool:
        return self.plans.is_over or time.monotonic() >= self.end

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        if not self.is_over:
            return self.plans.submit(jobs, whole=whole)
        found: Future[tuple[Answer, ...]] = Future()
        found.set_exception(OutOfTimeError())
        return found
