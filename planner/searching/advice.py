"""Advice for a job that does not fit: the search under a time budget, the changes that cost least first.

Single changes come first, then several on top of each other, then other layouts of the same GPUs. Each is proven by a
plan, and what was tried and what came closest is said in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from planner.bound.lower_bound import lower_bound
from planner.errors import SpecError
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.report.statement import Advice
from planner.searching.axes import axis_of
from planner.searching.engine import search
from planner.searching.exact import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.objectives import Objective
from planner.searching.roofline import cost_of
from planner.searching.space import Space, global_batch_of, least_axes
from planner.searching.steps import Change, Step, rows, single, smaller_micro_batches

USUAL_SECONDS = 20.0
_LAYOUTS = 2
"""Other layouts that are said."""
_STEPS_SHARE = 0.5
"""Of the time, for changes of the job in its own layout; what is left is for others."""

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


def advise(
    job: Job,
    plans: Plans,
    *,
    progress: Progress = lambda _: None,
    seconds: float = USUAL_SECONDS,
    relayout: bool = True,
) -> Advised:
    """The single changes that make a job fit that does not; where none does alone, the shortest row of them that does;
    where none of those does, other layouts of its GPUs (`relayout`). `seconds` divide the time between them; the
    deadline itself is that of `plans`."""
    trial = _Trial(job, plans, progress)
    try:
        _try_all(trial, time.monotonic() + seconds * _STEPS_SHARE, relayout=relayout)
    except OutOfTimeError:
        trial.found.in_time = False
    return trial.found


def _try_all(trial: _Trial, steps_end: float, *, relayout: bool) -> None:
    job = trial.job
    if not trial.nothing_helps():
        advice = trial.all_that_fit(single(job))
        advice += trial.first_that_fits(smaller_micro_batches(job), steps_end)
        trial.found.advice = tuple(advice) or tuple(trial.first_that_fits(rows(job, trial.refused), steps_end))
    if relayout and not trial.found.advice and Mesh.of(job.parallel).world_size > 1:
        trial.found.advice = tuple(_other_layouts(trial))


@dataclass(slots=True)
class _Trial:
    """Plans changes of one job."""

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
            return True
        known = set(self.refused)
        answer = self._answer(everything, self._submit(everything))
        self.refused = known  # which of all of them it cannot be run with, is not known yet
        return isinstance(answer, Exact) and answer.surely_exceeds

    def all_that_fit(self, steps: Iterable[Step]) -> list[Advice]:
        """Several are planned at a time."""
        begun = [(step, self._submit(step)) for step in steps if not self._exceeds_by_bound(step)]
        return [advice for step, future in begun for advice in self._advice(step, self._answer(step, future))]

    def first_that_fits(self, steps: Iterable[Step], until: float) -> Iterator[Advice]:
        for step in steps:
            if time.monotonic() >= until:
                self.found.in_time = False
                return
            if self._exceeds_by_bound(step):
                continue
            for advice in self._advice(step, self._answer(step, self._submit(step))):
                yield advice
                return

    def tell(self, what: str) -> None:
        self.found.tried.append(what)
        self.progress(f"trying {what}")

    def remember(self, change: Change, exact: Exact) -> None:
        """What a plan said of something that does not fit."""
        closest = self.found.closest
        if exact.whole and (closest is None or exact.headroom_bytes > closest[1].headroom_bytes):
            self.found.closest = (change, exact)

    def _submit(self, step: Step) -> Future[tuple[Answer, ...]]:
        self.tell(describe(step[0]))
        return self.plans.submit([step[1]], whole=True)

    def _answer(self, step: Step, future: Future[tuple[Answer, ...]]) -> Answer:
        (answer,) = future.result()
        self.found.planned += 1
        if isinstance(answer, Refused):
            self.refused.update(step[0])
        elif not answer.fits:
            self.remember(step[0], answer)
        return answer

    def _advice(self, step: Step, answer: Answer) -> list[Advice]:
        """What to say of the change; nothing if the job does not fit with it, or cannot be run with it."""
        if isinstance(answer, Refused) or not answer.fits:
            return []
        return [Advice(change=step[0], device_bytes=answer.device_bytes, verdict=answer.verdict)]

    def _exceeds_by_bound(self, step: Step) -> bool:
        exceeds = lower_bound(step[1]).exceeds
        self.found.by_bound += exceeds
        return exceeds


def _other_layouts(trial: _Trial) -> Iterator[Advice]:
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
        found = search(space, trial.plans, objective=objective, top=_LAYOUTS, any_fit=True, progress=trial.progress)
    except SpecError:
        return
    trial.found.planned += found.planned
    trial.found.by_bound += found.scales.beyond_bound
    trial.found.layouts = found.scales.looked_at
    trial.found.in_time = trial.found.in_time and not found.stopped
    if found.closest is not None:
        trial.remember(found.closest.candidate.change, found.closest.exact)
    for row in found.rows:
        exact = row.exact
        yield Advice(change=row.candidate.change, device_bytes=exact.device_bytes, verdict=exact.verdict)


def describe(change: Change) -> str:
    """The change in a line."""
    return ", ".join(f"{key}: {value}" for key, value in change.items())
