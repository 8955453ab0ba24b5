"""A spec whose batches differ in length, where what the allocator caches over all of them cannot be replayed."""

from __future__ import annotations

from dataclasses import replace

from plan_makers import JOB, trace_of

from planner.job.layout import RankClass
from planner.job.rank_sets import RankSet
from planner.planning.judging import RankTrace
from planner.planning.plan import plan_from_traces
from planner.tracing.batch_sizes import DrawnBatches, TriedBatch, VaryingSize
from planner.truth.calibration.interval import Calibration

DRAWN = DrawnBatches(
    size=VaryingSize(name="input_ids", smallest=(2, 8), largest=(2, 64), different=3),
    drawn=40,
    epoch=40,
    tried=(TriedBatch(name="largest batch", shape=(2, 64), as_large=1, iteration=1),),
    trains=True,
    order=((8,), (64,), (24,)),
    given=((8,), (24,)),
)


def test_the_plan_says_why_its_interval_is_wider() -> None:
    trace = replace(trace_of(0), drawn=(DRAWN, DRAWN))

    plan = plan_from_traces(JOB, [RankTrace(RankClass(0, RankSet.world(1), {}), trace)], Calibration.none()).plan

    assert [note for note in plan.notes if "batches of other sizes" in note] == [
        "What the allocator caches over 40 batches of other sizes was not replayed (several data loaders are trained"
        " on): the interval allows for 150% more to be reserved."
    ]
