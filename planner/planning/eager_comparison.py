"""Says what a compiled job would take without torch.compile, and of what its peak then has more or less."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.events import Category
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.planning.pipeline import PlanningResult, Progress, RankTrace, judge_trace
from planner.planning.trace_source import TraceSource
from planner.report.statement import RankClassStatement
from planner.units import show_bytes

_SHOWN_SHARE = 0.005
"""Of the peak: what differs by less is not named."""


def add_eager(
    found: PlanningResult, job: Job, calibration: Calibration, source: TraceSource, progress: Progress
) -> PlanningResult:
    """The plan of a compiled job with a sentence on the eager one, for the ranks that take most; others as they are."""
    if job.train.compile is None:
        return found
    compiled = max(found.plan.rank_classes, key=lambda each: each.peak.device_bytes)
    progress(f"tracing ranks {compiled.ranks} without torch.compile")
    try:
        eager = _plan_eager(job, compiled, calibration, source)
    except PlannerError as error:
        sentence = f"Without torch.compile the step cannot be traced: {error.problem}."
    else:
        sentence = _compare(compiled, eager)
    return replace(found, notes=(*found.notes, sentence))


def _plan_eager(
    job: Job, compiled: RankClassStatement, calibration: Calibration, source: TraceSource
) -> RankClassStatement:
    eager = replace(job, train=replace(job.train, compile=None))
    rank = compiled.representative
    trace = source.trace_rank(eager, rank)
    mine = next(each for each in rank_classes(Mesh.of(job.parallel)) if rank in each.ranks)
    return judge_trace(eager, RankTrace(mine, trace), calibration).statement


def _compare(compiled: RankClassStatement, eager: RankClassStatement) -> str:
    more = eager.peak.device_bytes - compiled.peak.device_bytes
    said = f"Without torch.compile ranks {compiled.ranks} would take {show_bytes(eager.peak.device_bytes)}, "
    said += f"{show_bytes(abs(more))} {'more' if more >= 0 else 'less'}"
    parts = ", ".join(_differences(compiled, eager))
    return f"{said}; at the peak: {parts}." if parts else f"{said}."


def _differences(compiled: RankClassStatement, eager: RankClassStatement) -> list[str]:
    """By category, the largest first."""
    differences = {each: eager.at_peak.get(each, 0) - compiled.at_peak.get(each, 0) for each in Category}
    least = eager.peak.allocated_bytes * _SHOWN_SHARE
    named = sorted(differences.items(), key=lambda each: -abs(each[1]))
    return [
        f"{category.value.replace('_', ' ')} {'+' if size > 0 else '-'}{show_bytes(abs(size))}"
        for category, size in named
        if abs(size) >= least
    ]
