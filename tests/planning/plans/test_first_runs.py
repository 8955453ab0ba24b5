"""A compiled job with Inductor's cache empty and filled: both are said, the larger is judged."""

from __future__ import annotations

from dataclasses import replace

from planner.events import TIMING, Alloc, Free, Mark, Origin, Phase, Repeat
from planner.job.layout import RankClass
from planner.job.rank_sets import RankSet
from planner.job.schema import Cluster, Gpu, Job, Model
from planner.planning.judging import RankTrace, judge_trace
from planner.planning.trace_variants import without_timing
from planner.report.plan_text import first_runs_sentence
from planner.report.statement import FirstRuns
from planner.tracing.rank_trace import Trace
from planner.truth.calibration.interval import Calibration
from planner.units import GIB, MIB

BUFFER = Origin(op=TIMING)
WEIGHTS, TIMED, GRADIENTS = Alloc(0, 512 * MIB, 0), Alloc(1, 256 * MIB, 0, BUFFER), Alloc(2, 300 * MIB, 0)
FIRST = (
    Mark(Phase.FORWARD, 1), WEIGHTS, TIMED, Free(1), Mark(Phase.BACKWARD, 1), GRADIENTS, Free(2),
)  # fmt: skip


def judge(trace: Trace, gpu_bytes: int = 8 * GIB):
    job = Job(model=Model(), cluster=Cluster(gpu=Gpu(name="H100-SXM-80GB", total_bytes=gpu_bytes, arch="sm_90")))
    return judge_trace(job, RankTrace(RankClass(0, RankSet.world(1), {}), trace), Calibration.none())


def test_what_timing_takes_is_left_out_and_what_repeats_is_found_where_it_is_then() -> None:
    second = (Mark(Phase.FORWARD, 2), Alloc(3, 300 * MIB, 0), Free(3))
    trace = Trace((*FIRST, *second), repeats=(Repeat(len(FIRST), len(FIRST) + 3, 5, 1),))

    filled = without_timing(trace)

    assert filled == Trace(
        (Mark(Phase.FORWARD, 1), WEIGHTS, Mark(Phase.BACKWARD, 1), GRADIENTS, Free(2), *second),
        repeats=(Repeat(len(FIRST) - 2, len(FIRST) + 1, 5, 1),),
    )


def test_of_a_job_that_compiles_nothing_there_is_one_run() -> None:
    eager = Trace((WEIGHTS, GRADIENTS, Free(2)))

    assert without_timing(eager) is None
    assert judge(eager).statement.first_runs is None


def test_the_larger_run_is_stated_and_both_peaks_are_said() -> None:
    judged = judge(Trace(FIRST))

    # The buffer of 256 MiB is cached and too small for the gradients.
    assert judged.statement.first_runs == FirstRuns(empty_cache_bytes=1068 * MIB, filled_cache_bytes=812 * MIB)
    assert judged.statement.peak.reserved_bytes == 1068 * MIB
    assert TIMED in judged.trace.events


def test_where_later_requests_take_what_timing_has_left_both_peaks_are_equal() -> None:
    trace = Trace((Mark(Phase.FORWARD, 1), Alloc(0, 512 * MIB, 0), Alloc(1, 300 * MIB, 0, BUFFER), Free(1)))

    judged = judge(replace(trace, events=(*trace.events, Alloc(2, 300 * MIB, 0), Free(2))))

    assert judged.statement.first_runs == FirstRuns(empty_cache_bytes=812 * MIB, filled_cache_bytes=812 * MIB)


def test_a_job_that_fits_easily_with_a_filled_cache_only_is_tight() -> None:
    """With an empty one the allocator has to give the buffer back."""
    held = judge(Trace(FIRST)).statement.outside_allocator.total_bytes

    judged = judge(Trace(FIRST), gpu_bytes=held + 900 * MIB).statement

    assert (judged.verdict, judged.cache_releases) == ("tight", 1)


def test_both_are_said_in_words() -> None:
    assert first_runs_sentence(FirstRuns(empty_cache_bytes=3 * GIB, filled_cache_bytes=2 * GIB)) == (
        "With Inductor's cache empty (a new container) 3.00 GiB are reserved, with a filled one 2.00 GiB."
    )
    assert first_runs_sentence(FirstRuns(empty_cache_bytes=GIB, filled_cache_bytes=GIB)) == (
        "With Inductor's cache empty (a new container) or filled 1.00 GiB are reserved."
    )
