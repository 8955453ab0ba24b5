"""`planner.plan`, `planner.check` and `planner.compare`: a job's memory as an object, beside what was measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from planner.api.child import call
from planner.api.given import JobSource, JobWords, read_job
from planner.job.bound.lower_bound import lower_bound
from planner.job.loading import bundle
from planner.job.schema import Job
from planner.report import statement
from planner.report.html_pages import render_card
from planner.report.plan_text import render
from planner.report.statement import Advice, RankClassStatement, Verdict
from planner.report.style import Style
from planner.report.verdict_text import bound_sentence, deciding, job_sentence
from planner.truth import plan_comparison
from planner.truth.plan_comparison import Comparison


@dataclass(frozen=True)
class Plan:
    """What every rank of a job will hold, and whether it fits. All sizes are bytes.

    It prints as the report of `planner plan`, and shows itself in a notebook.
    """

    job: Job
    statement: statement.Plan
    """The plan with all of its figures."""
    taken: tuple[str, ...] = ()
    """What was assumed of the job where nothing was said."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed of the job and for its plan, and where figures come from."""
        return (*self.taken, *self.statement.notes, *self.statement.sources)

    @property
    def verdict(self) -> Verdict:
        """`fits`, `tight` or `exceeds`."""
        return self.statement.verdict

    @property
    def fits(self) -> bool:
        """Whether the job will run: also tightly."""
        return self.verdict is not Verdict.EXCEEDS

    @property
    def rank_classes(self) -> tuple[RankClassStatement, ...]:
        """The ranks that do the same, with their peak, phases, categories and holders."""
        return self.statement.rank_classes

    @property
    def fullest(self) -> RankClassStatement:
        """The rank class that decides the verdict."""
        return deciding(self.statement)

    @property
    def device_bytes(self) -> int:
        """What NVML would show of the fullest rank at its peak."""
        return self.fullest.peak.device_bytes

    @property
    def capacity_bytes(self) -> int:
        return self.fullest.capacity_bytes

    @property
    def headroom_bytes(self) -> int:
        return self.fullest.headroom_bytes

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Changes that make it fit; none where it does."""
        return self.statement.advice

    def to_dict(self) -> dict[str, Any]:
        """As `planner plan --format json` prints it (planner.plan/2)."""
        return statement.to_json(self.statement)

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Memory over time of all rank classes, as a page of its own."""
        Path(path).write_text(call("timeline_page", self.job), encoding="utf-8")

    def write_snapshot(self, path: str | os.PathLike[str], rank: int | None = None) -> None:
        """The rank class of a rank for PyTorch's memory viewer; by default `fullest`."""
        call("snapshot", self.job, os.fspath(path), rank)

    def __str__(self) -> str:
        return render(replace(self.statement, notes=(*self.taken, *self.statement.notes)), Style(), verbose=False)

    def __repr__(self) -> str:
        return f"<Plan {job_sentence(self.statement)}>"

    def _repr_html_(self) -> str:
        return render_card(self.statement, self.notes)


@dataclass(frozen=True)
class Check:
    """The verdict on a job, and a sentence with its figures."""

    verdict: Verdict
    sentence: str
    plan: Plan | None
    """None where a lower bound alone was enough to refuse."""

    @cached_property
    def fits(self) -> bool:
        return self.verdict is not Verdict.EXCEEDS

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def plan(
    job: JobSource, *, settings: Mapping[str, Any] | None = None, advice: bool = True, **words: Unpack[JobWords]
) -> Plan:
    """Plan a job: `planner.plan("Qwen/Qwen3-8B", gpus="4xH100", lora="r=16", sequence_length=4096, fsdp=True)`.

    `job` is a spec or a bundle (a path, or a mapping), a model, or a Job; `words` say the rest of it in a few words,
    and `settings` set any key of a spec: `{"train.micro_batch_size": 4}`. With `advice` changes are looked for that
    would make it fit where it does not. The first call loads PyTorch in a process of its own (some seconds).
    Raises SpecError for what is not a job, TraceError or AllocatorConfError for what cannot be planned.
    """
    given = read_job(job, settings, **words)
    return Plan(given.job, call("make_plan", given.job, advice), tuple(given.taken))


def check(job: JobSource, *, settings: Mapping[str, Any] | None = None, **words: Unpack[JobWords]) -> Check:
    """Say whether a job fits; arguments and errors are those of :func:`plan`.

    A job whose lower bound exceeds its GPU is refused at once, without a trace.
    """
    given = read_job(job, settings, **words)
    bound = lower_bound(given.job)
    if bound.exceeds:
        return Check(Verdict.EXCEEDS, bound_sentence(bundle(given.job), bound.least_bytes, bound.capacity_bytes), None)
    made = call("make_plan", given.job, False)
    return Check(made.verdict, job_sentence(made), Plan(given.job, made, tuple(given.taken)))


def compare(
    predicted: Plan | JobSource,
    measured: str | os.PathLike[str],
    *,
    case: str = "",
    rank: int | None = None,
    settings: Mapping[str, Any] | None = None,
    **words: Unpack[JobWords],
) -> tuple[Comparison, ...]:
    """Set a plan, or a job that is planned for it, beside a file of measurements or a recorded snapshot: one comparison
    for each measurement, which prints as `planner compare` does.

    `case` and `rank` choose among the measurements. Raises PlannerError for a file that is neither or has none of
    them, and what :func:`planner.plan` raises.
    """
    path = Path(measured)
    if isinstance(predicted, Plan):
        return tuple(plan_comparison.run_compare(predicted.statement, path, case=case, rank=rank))
    given = read_job(predicted, settings, **words)
    return tuple(call("planner.planning.plan:compare_job", given.job, path, case, rank))
