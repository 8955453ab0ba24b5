"""Changes that make a job fit: each is planned before it is said, cheapest for the training first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.allocator.rules import Rules
from planner.planning import Progress, RankTrace, judged, traces
from planner.report.statement import Advice, Plan, Verdict
from planner.spec.job import Job, Optimizer, Recompute

Change = dict[str, Any]
Candidate = tuple[Change, Job]

_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch.optim with a fused implementation (torch 2.13, torch/optim)."""


def advise(job: Job, made_from: tuple[RankTrace, ...], progress: Progress = lambda _: None) -> tuple[Advice, ...]:
    """The single changes that make a job fit that does not; where none does alone, the shortest row of them that does.

    `made_from` are the traces of the job as it stands: a change of the allocator alone is replayed, not traced again.
    """
    found: list[Advice] = []
    for change, changed in _single(job):
        plan = _plan(job, changed, made_from, change, progress)
        if plan.verdict is not Verdict.EXCEEDS:
            found.append(_advice(change, plan))
    smaller = _first_that_fits(job, _smaller_micro_batches(job), made_from, progress)
    if smaller is not None:
        found.append(smaller)
    return tuple(found) if found else _together(job, made_from, progress)


def _single(job: Job) -> Iterator[Candidate]:
    for each in (_bucket_view, _expandable_segments, _fused, _chunked_loss, _selective, _full):
        candidate = each(job)
        if candidate is not None:
            yield candidate


def _together(job: Job, made_from: tuple[RankTrace, ...], progress: Progress) -> tuple[Advice, ...]:
    """One change after the other, the cheapest first, until it fits."""
    steps: tuple[Callable[[Job], Candidate | None], ...] = (
        _bucket_view, _expandable_segments, _fused, _chunked_loss, _full,
    )  # fmt: skip
    change: Change = {}
    changed = job
    for step in steps:
        candidate = step(changed)
        if candidate is None:
            continue
        change, changed = {**change, **candidate[0]}, candidate[1]
        plan = _plan(job, changed, made_from, change, progress)
        if plan.verdict is not Verdict.EXCEEDS:
            return (_advice(change, plan),)
    rows = (({**change, **smaller}, each) for smaller, each in _smaller_micro_batches(changed))
    last = _first_that_fits(job, rows, made_from, progress)
    return () if last is None else (last,)


def _first_that_fits(
    job: Job, candidates: Iterator[Candidate], made_from: tuple[RankTrace, ...], progress: Progress
) -> Advice | None:
    for change, changed in candidates:
        plan = _plan(job, changed, made_from, change, progress)
        if plan.verdict is not Verdict.EXCEEDS:
            return _advice(change, plan)
    return None


def _plan(
    job: Job, changed: Job, made_from: tuple[RankTrace, ...], change: Mapping[str, Any], progress: Progress
) -> Plan:
    progress("trying " + ", ".join(f"{key}: {value}" for key, value in change.items()))
    same_step = dataclasses.replace(changed, allocator=job.allocator) == job
    return judged(changed, made_from if same_step else traces(changed)).plan


def _advice(change: Change, plan: Plan) -> Advice:
    worst = max(each.peak.device_bytes for each in plan.rank_classes)
    return Advice(change=change, device_bytes=worst, verdict=plan.verdict)


def _bucket_view(job: Job) -> Candidate | None:
    replicate = job.parallel.dp_replicate
    if replicate.degree == 1 or replicate.gradient_as_bucket_view:
        return None
    parallel = dataclasses.replace(
        job.parallel, dp_replicate=dataclasses.replace(replicate, gradient_as_bucket_view=True)
    )
    return {"parallel.dp_replicate.gradient_as_bucket_view": True}, dataclasses.replace(job, parallel=parallel)


def _expandable_segments(job: Job) -> Candidate | None:
    if Rules.from_conf(job.allocator.conf).expandable_segments:
        return None
    conf = ",".join(part for part in (job.allocator.conf, "expandable_segments:True") if part)
    return {"allocator.conf": conf}, dataclasses.replace(job, allocator=dataclasses.replace(job.allocator, conf=conf))


def _fused(job: Job) -> Candidate | None:
    optimizer = job.train.optimizer
    if optimizer.name not in _FUSED or optimizer.arguments.get("fused") or optimizer.arguments.get("foreach") is False:
        return None
    arguments = {key: value for key, value in optimizer.arguments.items() if key != "foreach"}
    fused = Optimizer(name=optimizer.name, arguments={**arguments, "fused": True})
    change: Change = {"train.optimizer.fused": True}
    if "foreach" in optimizer.arguments:
        change["train.optimizer.foreach"] = None
    return change, _with_train(job, optimizer=fused)


def _chunked_loss(job: Job) -> Candidate | None:
    loss = job.train.loss
    if loss.name != "cross_entropy" or loss.chunks != 1 or job.train.sequence_length < 8:
        return None
    return {"train.loss.chunks": 8}, _with_train(job, loss=dataclasses.replace(loss, chunks=8))


def _selective(job: Job) -> Candidate | None:
    if job.train.recompute.mode != "none":
        return None
    return {"train.recompute": "selective"}, _with_train(job, recompute=Recompute(mode="selective"))


def _full(job: Job) -> Candidate | None:
    if job.train.recompute.mode == "full":
        return None
    return {"train.recompute": "full"}, _with_train(job, recompute=Recompute(mode="full"))


def _smaller_micro_batches(job: Job) -> Iterator[Candidate]:
    """Half the micro-batch and twice the accumulation, as often as it goes: the same global batch."""
    size, steps = job.train.micro_batch_size, job.train.gradient_accumulation_steps
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        change = {"train.micro_batch_size": size, "train.gradient_accumulation_steps": steps}
        yield change, _with_train(job, micro_batch_size=size, gradient_accumulation_steps=steps)


def _with_train(job: Job, **fields: Any) -> Job:
    return dataclasses.replace(job, train=dataclasses.replace(job.train, **fields))
