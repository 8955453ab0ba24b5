"""Advice for a job that does not fit: the search under a time budget, the changes that cost least first.

Single changes come first, then several on top of each other, then other layouts of the same GPUs, then larger GPUs,
more of them, LoRA and QLoRA. Each is proven by a plan, and what was tried and what came closest is said in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from planner.bound.lower_bound import lower_bound
from planner.errors import SpecError
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.report.statement import Advice, change_text
from planner.searching.axes import axis_of
from planner.searching.engine import search
from planner.searching.exact import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.objectives import Objective
from planner.searching.roofline import cost_of
from planner.searching.space import Space, global_batch_of, least_axes
from planner.searching.steps import Change, Step, adapters, larger_gpus, more_gpus, rows, single, smaller_micro_batches

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
