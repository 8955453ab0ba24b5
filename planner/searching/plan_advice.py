"""Adds advice to the plan of a job that does not fit, or only by freeing its cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.job.printing import short_yaml
from planner.job.schema import Job
from planner.planning.identity import trace_id_of
from planner.planning.plan import PlanningResult, plan_job
from planner.planning.planned_classes import Progress
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.planning.without_compile import add_eager
from planner.report.statement import AdviceTried, Verdict, change_text
from planner.report.verdict_text import frees_its_cache
from planner.searching.advice import USUAL_SECONDS, Advised, advise
from planner.searching.axes import apply
from planner.searching.exact_plans import PlansHere
from planner.tracing.rank_trace import Trace
from planner.units import show_bytes


@dataclass(frozen=True, slots=True)
class RememberedTraces(TraceSource):
    """A source that has the traces of one job, and asks another source for any other."""

    trace_id: str = ""
    """Of the job."""
    traces: Mapping[int, Trace] = field(default_factory=dict)
    """By rank."""

    def trace_rank(self, job: Job, rank: int) -> Trace:
        if rank in self.traces and trace_id_of(job) == self.trace_id:
            return self.traces[rank]
        return TraceSource.trace_rank(self, job, rank)


def add_advice(
    result: PlanningResult,
    *,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
    seconds: float = USUAL_SECONDS,
) -> PlanningResult:
    """The plan with advice if it exceeds its GPUs, or fits only by freeing the cache of its allocator.

    After `seconds` a trace that has begun is ended (in a process's main thread).
    """
    frees_cache = frees_its_cache(result.plan)
    if result.plan.verdict is not Verdict.EXCEEDS and not frees_cache:
        return result
    began, job = time.monotonic(), result.job
    remembered = RememberedTraces(
        isolation=source.isolation,
        cache=source.cache,
        trace_id=trace_id_of(job),
        traces={traced.rank_class.representative: traced.trace for traced in result.traces},
    )
    plans = PlansHere(calibration=result.calibration, source=remembered, deadline=began + seconds)
    advised = advise(job, plans, progress=progress, seconds=seconds, frees_cache=frees_cache)
    took = time.monotonic() - began
    change, exact = advised.closest or ({}, None)
    tried = AdviceTried(
        planned=advised.planned,
        by_bound=advised.by_bound,
        layouts=advised.layouts,
        in_time=not advised.not_planned,
        closest_change=change,
        closest_lacks_bytes=0 if exact is None else -exact.headroom_bytes,
        not_planned=tuple(advised.not_planned),
    )
    seconds_of_plan = replace(result.plan.seconds, total=round(result.plan.seconds.total + took, 3))
    spec = short_yaml(apply(job, advised.advice[0].change)) if advised.advice else ""
    notes = (*result.plan.notes, what_was_tried(advised, took, frees_cache=frees_cache))
    plan = replace(
        result.plan, advice=advised.advice, advice_tried=tried, fitting_spec=spec, notes=notes, seconds=seconds_of_plan
    )
    return replace(result, plan=plan)


def plan_with_advice(
    job: Job,
    source: TraceSource,
    *,
    processes: int,
    keep_traces: bool = False,
    eager: bool = True,
    advice: bool = True,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a job as people are shown it: of a compiled one beside its eager step, and with advice."""
    result = plan_job(job, source=source, processes=processes, keep_traces=keep_traces, progress=progress)
    if eager:
        result = add_eager(result, source, progress)
    return add_advice(result, source=source, progress=progress) if advice else result


_MOST_NAMED = 12
"""Of changes that were not planned."""


def what_was_tried(advised: Advised, seconds: float, *, frees_cache: bool = False) -> str:
    """In sentences: what was planned and what was not; where nothing was found, with each change and what it takes."""
    text = f"Advice: {advised.planned} change{'s were' if advised.planned != 1 else ' was'} planned in {seconds:.0f} s"
    if advised.by_bound:
        text += f", {advised.by_bound} excluded by their lower bound"
    if advised.layouts:
        text += f", {advised.layouts:,} candidates with other layouts looked at"
    text += "."
    if left := advised.not_planned:
        more = f"; and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        text += f" The time was over, and not planned are: {'; '.join(left[:_MOST_NAMED])}{more}."
    if advised.advice:
        return text
    if advised.planned or not left:
        found = "None of those planned" if left else "None of them" if frees_cache else "Nothing was found that"
        text += f" {found} {'avoids freeing the cache' if frees_cache else 'makes it fit'}."
    if advised.closest is not None:
        change, exact = advised.closest
        text += f" Closest came {change_text(change)}, which lacks {show_bytes(-exact.headroom_bytes)}."
    if advised.tried:
        text += f" Planned: {'; '.join(dict.fromkeys(advised.tried))}."
    if advised.excluded:
        parts = [f"{change_text(change)} ({show_bytes(least)})" for change, least in advised.excluded]
        text += f" Too large at least, by their lower bound: {'; '.join(parts)}."
    return text
