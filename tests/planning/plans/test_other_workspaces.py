"""Reserved bytes hang on how large cuDNN's workspaces are: the interval covers those of other sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_makers import JOB

from planner.events import Alloc, Event, Free, Mark, Origin, Phase
from planner.job.layout import RankClass
from planner.job.rank_sets import RankSet
from planner.planning import judging, trace_variants
from planner.planning.judging import RankTrace
from planner.report.statement import RankClassStatement, Verdict
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration
from planner.units import GIB, MIB

CONVOLUTION = Origin(op="cudnn_convolution.workspace")


def step(op: str, size: int = 20 * GIB) -> tuple[Event, ...]:
    """A tensor takes the place of a workspace that is as large."""
    return (
        Mark(Phase.LOAD),
        Alloc(0, size, origin=Origin(op=op)),
        Free(0),
        Mark(Phase.FORWARD, 1),
        Alloc(1, size),
        Mark(Phase.OPTIMIZER_STEP, 1),
    )


def judged(op: str) -> RankClassStatement:
    rank_trace = RankTrace(RankClass(0, RankSet.world(1), {}), Trace(events=step(op)))
    return judging.judge_trace(JOB, rank_trace, Calibration.none()).statement


def test_a_workspace_of_another_size_is_in_the_interval() -> None:
    job_fits, other = judged("aten.mm"), judged(CONVOLUTION.op)

    assert other.peak.reserved_bytes == job_fits.peak.reserved_bytes == 20 * GIB
    assert other.peak.interval_bytes[0] == job_fits.peak.interval_bytes[0]
    assert other.peak.interval_bytes[1] > job_fits.peak.interval_bytes[1] + 18 * GIB


def test_a_cache_that_is_given_back_under_pressure_makes_no_job_tight() -> None:
    smaller = replace(JOB, cluster=replace(JOB.cluster, gpu=replace(JOB.cluster.gpu, total_bytes=30 * GIB)))
    rank_trace = RankTrace(RankClass(0, RankSet.world(1), {}), Trace(events=step(CONVOLUTION.op)))

    assert judging.judge_trace(smaller, rank_trace, Calibration.none()).statement.verdict is Verdict.FITS


def test_equal_workspaces_are_varied_alike_and_nothing_else_is() -> None:
    events = (
        *step(CONVOLUTION.op, 8 * MIB),
        Alloc(2, 8 * MIB, origin=CONVOLUTION),
        Alloc(3, 4 * MIB, origin=CONVOLUTION),
    )

    varied = list(trace_variants.vary_workspaces(events))

    sizes = [[event.requested_bytes for event in each if isinstance(event, Alloc)] for each in varied]
    assert all(first == third and second == 8 * MIB for first, second, third, _ in sizes)
    assert len({first for first, *_ in sizes}) > 4
    assert all(abs(first / (8 * MIB) - 1) <= 0.0901 for first, *_ in sizes)
    assert varied == list(trace_variants.vary_workspaces(events))  # the same each time


@pytest.mark.parametrize("op", ["aten.mm", "cublas.workspace"])
def test_a_step_without_convolutions_has_one_replay(op: str) -> None:
    assert list(trace_variants.vary_workspaces(step(op))) == []
