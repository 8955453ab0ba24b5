"""What a compiled job takes without torch.compile, beside its plan."""

from __future__ import annotations

from dataclasses import replace

from planner.errors import PlannerError
from planner.events import Category
from planner.job.layout import Mesh, rank_classes
from planner.planning.judging import RankTrace, judge_trace
from planner.planning.plan import PlanningResult
from planner.planning.planned_classes import Progress
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import RankClassStatement, WithoutCompile
from planner.units import show_bytes

_SHOWN_SHARE = 0.005
"""Of the peak: what differs by less is not named."""
_WORDS = {Category.ACTIVATION: "saved activations", Category.TEMPORARY: "temporaries that fusing avoids"}


def add_eager(
    result: PlanningResult,
    source: TraceSource = USUAL_SOURCE,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a compiled job with what the eager one takes, of the ranks that take most; others as they are."""
    job = result.job
    if job.train.compile is None:
        return result
    compiled = max(result.plan.rank_classes, key=lambda rank_class: rank_class.peak.device_bytes)
    progress(f"tracing ranks {compiled.ranks} without torch.compile")
    eager_job = replace(job, train=replace(job.train, compile=None))
    rank = compiled.representative
    rank_class = next(ranks for ranks in rank_classes(Mesh.of(job.parallel)) if rank in ranks.ranks)
    try:
        trace = source.trace_rank(eager_job, rank)
        eager = judge_trace(eager_job, RankTrace(rank_class, trace), result.calibration).statement
    except PlannerError as error:
        sentence = f"Without torch.compile the step cannot be traced: {error.problem}."
        without = WithoutCompile(ranks=compiled.ranks, device_bytes=None, more_at_peak={}, sentence=sentence)
    else:
        without = _compare(compiled, eager)
    notes = (*result.plan.notes, without.sentence)
    return replace(result, plan=replace(result.plan, without_compile=without, notes=notes))


def _compare(compiled: RankClassStatement, eager: RankClassStatement) -> WithoutCompile:
    differences = {name: eager.at_peak.get(name, 0) - compiled.at_peak.get(name, 0) for name in Category}
    differences = {category: size for category, size in differences.items() if size}
    more = eager.peak.device_bytes - compiled.peak.device_bytes
    sentence = (
        f"Without torch.compile ranks {compiled.ranks} would take {show_bytes(eager.peak.device_bytes)}, "
        f"{show_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    )
    parts = ", ".join(
        f"{_WORDS.get(category, category.value.replace('_', ' '))} {'+' if size > 0 else '-'}{show_bytes(abs(size))}"
        for category, size in sorted(differences.items(), key=lambda pair: -abs(pair[1]))
        if abs(size) >= eager.peak.allocated_bytes * _SHOWN_SHARE
    )
    return WithoutCompile(
        ranks=compiled.ranks,
        device_bytes=eager.peak.device_bytes,
        more_at_peak=differences,
        sentence=f"{sentence}; at the peak: {parts}." if parts else f"{sentence}.",
    )
