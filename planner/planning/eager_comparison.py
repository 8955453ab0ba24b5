"""Says what a compiled job would take without torch.compile, and of what its peak then has more or less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.events import Category
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.planning.judging import RankTrace, judge_trace
from planner.planning.pipeline import PlanningResult, Progress
from planner.planning.trace_source import TraceSource
from planner.report.statement import RankClassStatement, WithoutCompile
from planner.units import show_bytes

_SHOWN_SHARE = 0.005
"""Of the peak: what differs by less is not named."""
_WORDS = {Category.ACTIVATION: "saved activations", Category.TEMPORARY: "temporaries that fusing avoids"}


def add_eager(
    found: PlanningResult,
    job: Job,
    calibration: Calibration,
    source: TraceSource,
    progress: Progress = lambda _: None,
) -> PlanningResult:
    """The plan of a compiled job with what the eager one takes, of the ranks that take most; others as they are."""
    if job.train.compile is None or job.train.compile.planned_as == "eager":
        return found
    compiled = max(found.plan.rank_classes, key=lambda each: each.peak.device_bytes)
    progress(f"tracing ranks {compiled.ranks} without torch.compile")
    try:
        eager = _plan_eager(job, compiled, calibration, source)
    except PlannerError as error:
        sentence = f"Without torch.compile the step cannot be traced: {error.problem}."
        said = WithoutCompile(ranks=compiled.ranks, device_bytes=None, more_at_peak={}, sentence=sentence)
    else:
        said = _compare(compiled, eager)
    return replace(found, plan=replace(found.plan, without_compile=said), notes=(*found.notes, said.sentence))


def _plan_eager(
    job: Job, compiled: RankClassStatement, calibration: Calibration, source: TraceSource
) -> RankClassStatement:
    eager = replace(job, train=replace(job.train, compile=None))
    rank = compiled.representative
    trace = source.trace_rank(eager, rank)
    mine = next(each for each in rank_classes(Mesh.of(job.parallel)) if rank in each.ranks)
    return judge_trace(eager, RankTrace(mine, trace), calibration).statement


def _compare(compiled: RankClassStatement, eager: RankClassStatement) -> WithoutCompile:
    differences = {each: eager.at_peak.get(each, 0) - compiled.at_peak.get(each, 0) for each in Category}
    more = {category: size for category, size in differences.items() if size}
    return WithoutCompile(
        ranks=compiled.ranks,
        device_bytes=eager.peak.device_bytes,
        more_at_peak=more,
        sentence=_sentence(compiled, eager, more),
    )


def _sentence(compiled: RankClassStatement, eager: RankClassStatement, differences: Mapping[Category, int]) -> str:
    more = eager.peak.device_bytes - compiled.peak.device_bytes
    said = f"Without torch.compile ranks {compiled.ranks} would take {show_bytes(eager.peak.device_bytes)}, "
    said += f"{show_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    least = eager.peak.allocated_bytes * _SHOWN_SHARE
    parts = ", ".join(
        f"{_WORDS.get(category, category.value.replace('_', ' '))} {'+' if size > 0 else '-'}{show_bytes(abs(size))}"
        for category, size in sorted(differences.items(), key=lambda each: -abs(each[1]))
        if abs(size) >= least
    )
    return f"{said}; at the peak: {parts}." if parts else f"{said}."
