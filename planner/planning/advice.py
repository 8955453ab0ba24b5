"""Plans changes that make a job fit, cheapest for the training first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from planner.allocator.rules import Rules
from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.events import Phase
from planner.job.schema import Job, Optimizer, Recompute
from planner.planning.pipeline import Progress, RankTrace, judge_traces, trace_job
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import Advice, Plan, RankClassStatement, Verdict

Change = dict[str, Any]
Candidate = tuple[Change, Job]

_FUSED = {"Adam", "AdamW", "SGD", "Adagrad"}
"""Optimizers of torch.optim with a fused implementation (torch 2.13, torch/optim)."""


def advise(
    job: Job,
    made_from: tuple[RankTrace, ...],
    calibration: Calibration | None = None,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
) -> tuple[Advice, ...]:
    """The single changes that make a job fit that does not; where none does alone, the shortest row of them that does.

    `made_from` are the traces of the job as it stands: a change of the allocator alone is replayed, not traced again.
    """
    trial = _Trial(job, made_from, calibration, progress, source)
    if trial.is_hopeless() or trial.nothing_helps():
        return ()
    found = [advice for each in _single(job) if (advice := trial.of(*each)) is not None]
    smaller = trial.first_that_fits(_smaller_micro_batches(job))
    if smaller is not None:
        found.append(smaller)
    return tuple(found) if found else _together(trial)


@dataclasses.dataclass(frozen=True, slots=True)
class _Trial:
    """Plans changes of one job."""

    job: Job
    made_from: tuple[RankTrace, ...]
    calibration: Calibration | None
    progress: Progress
    source: TraceSource
    refused: set[str] = dataclasses.field(default_factory=set)
    """Keys whose change this job cannot be run with at any size: a model without blocks has none to recompute."""

    def is_hopeless(self) -> bool:
        """What stands after a step, and what is outside the allocator, is too much already: no change here shrinks it.

        Gradients may be among it if they are not set to None, and a bucket view does shrink those.
        """
        if not self.job.train.zero_grad_set_to_none:
            return False
        plan = judge_traces(self.job, self.made_from, self.calibration).plan
        return any(_standing_bytes(each) > each.capacity_bytes for each in plan.rank_classes)

    def nothing_helps(self) -> bool:
        """With all changes at once more is allocated at the peak than there is: so it is with any of them."""
        *_, everything = (None, *_rows(self))
        plan = None if everything is None else self._plan(*everything)
        return plan is not None and any(
            each.peak.allocated_bytes + each.outside_allocator.total_bytes > each.capacity_bytes
            for each in plan.rank_classes
        )

    def of(self, change: Change, changed: Job) -> Advice | None:
        """What to say of this change; None if the job does not fit with it, or cannot be run with it."""
        plan = self._plan(change, changed)
        if plan is None:
            self.refused.update(change)
        return None if plan is None or plan.verdict is Verdict.EXCEEDS else _advice(change, plan)

    def _plan(self, change: Change, changed: Job) -> Plan | None:
        self.progress("trying " + ", ".join(f"{key}: {value}" for key, value in change.items()))
        try:
            return judge_traces(changed, self._traces(changed), self.calibration).plan
        except PlannerError:
            return None

    def first_that_fits(self, candidates: Iterator[Candidate]) -> Advice | None:
        return next((advice for each in candidates if (advice := self.of(*each)) is not None), None)

    def _traces(self, changed: Job) -> tuple[RankTrace, ...]:
        same_step = dataclasses.replace(changed, allocator=self.job.allocator) == self.job
        return self.made_from if same_step else trace_job(changed, source=self.source)


def _standing_bytes(statement: RankClassStatement) -> int:
    """Device bytes between two iterations, at the least."""
    last = [phase for phase in statement.phases if phase.phase is Phase.OPTIMIZER_STEP][-1]
    return last.end_allocated_bytes + statement.outside_allocator.total_bytes


def _single(job: Job) -> Iterator[Candidate]:
    for each in (
        _bucket_view, _expandable_segments, _fuse_optimizer, _sequence_parallel, _chunked_loss, _selective, _full,
    ):  # fmt: skip
        candidate = each(job)
        if candidate is not None:
            yield candidate


def _together(trial: _Trial) -> tuple[Advice, ...]:
    """One change after the other, the cheapest first, until it fits; then smaller micro-batches on top of them all."""
    found = trial.first_that_fits(_rows(trial))
    return () if found is None else (found,)


def _rows(trial: _Trial) -> Iterator[Candidate]:
    steps: tuple[Callable[[Job], Candidate | None], ...] = (
        _bucket_view, _expandable_segments, _fuse_optimizer, _sequence_parallel, _chunked_loss, _full,
    )  # fmt: skip
    job = trial.job
    change: Change = {}
    for step in steps:
        candidate = step(job)
        if candidate is None or not trial.refused.isdisjoint(candidate[0]):
            continue
        change, job = {**change, **candidate[0]}, candidate[1]
        if len(change) > 1:  # alone it has been tried
            yield change, job
    for smaller, changed in _smaller_micro_batches(job):
        yield {**change, **smaller}, changed


def _advice(change: Change, plan: Plan) -> Advice:
    worst = max(each.peak.device_bytes for each in plan.rank_classes)
    return Advice(change=change, device_bytes=worst, verdict=plan.verdict)


def _bucket_view(job: Job) -> Candidate | None:
    replicate = job.parallel.dp_replicate
    if replicate.degree == 1 or replicate.gradient_as_bucket_view or job.parallel.deepspeed is not None:
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


def _fuse_optimizer(job: Job) -> Candidate | None:
    optimizer = job.train.optimizer
    if optimizer.name not in _FUSED or optimizer.arguments.get("fused") or optimizer.arguments.get("foreach") is False:
        return None
    arguments = {key: value for key, value in optimizer.arguments.items() if key != "foreach"}
    fused = Optimizer(name=optimizer.name, arguments={**arguments, "fused": True})
    change: Change = {"train.optimizer.fused": True}
    if "foreach" in optimizer.arguments:
        change["train.optimizer.foreach"] = None
    return change, _with_train(job, optimizer=fused)


def _sequence_parallel(job: Job) -> Candidate | None:
    tp, tokens = job.parallel.tp, job.train.sequence_length
    if tp.degree == 1 or tp.sequence_parallel or tp.plan or not tokens or tokens % (tp.degree * job.parallel.cp.degree):
        return None
    if job.model.decoder is None and (job.model.hf_config is None or job.parallel.pp.degree > 1):
        return None
    parallel = dataclasses.replace(job.parallel, tp=dataclasses.replace(tp, sequence_parallel=True))
    return {"parallel.tp.sequence_parallel": True}, dataclasses.replace(job, parallel=parallel)


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
