"""Traces come back event by event, for all rank classes of a job."""

from __future__ import annotations

from stored import get_traces, put_traces

from planner.events import Alloc, Category, EmptyCache, Free, FreeCompleted, Mark, Origin, Phase, Role, Synchronize, Use
from planner.service.history.store import History
from planner.tracing.rank_trace import Trace

TRACE = Trace(
    events=(
        Mark(Phase.FORWARD, 1),
        Alloc(1, 1024, 0, Origin("aten.mm", "layers.0", (16, 16), "float32")),
        Role(1, Category.ACTIVATION, ""),
        Use(1, 7),
        Alloc(2, 512, 7, None),
        Free(1),
        FreeCompleted(1),
        Synchronize(),
        EmptyCache(),
    ),
    buckets={"bucket_sizes": "25"},
    unknown_workspaces=("aten.convolution",),
    seconds=0.5,
)


def test_the_traces_of_a_job_come_back_by_representative(history: History) -> None:
    other = Trace(events=(Mark(Phase.LOAD, 0),))

    put_traces(history, "a" * 64, {8: other, 0: TRACE})

    assert list(get_traces(history, "a" * 64).items()) == [(0, TRACE), (8, other)]
    assert get_traces(history, "b" * 64) == {}


def test_tracing_again_replaces(history: History) -> None:
    put_traces(history, "a" * 64, {0: TRACE})
    put_traces(history, "a" * 64, {0: Trace(events=())})

    assert get_traces(history, "a" * 64) == {0: Trace(events=())}


def test_a_long_trace_is_stored_small(history: History) -> None:
    origin = Origin("aten.mm", "model.layers.0.mlp.gate_proj", (8192, 14336), "bfloat16")
    events = [event for block in range(20_000) for event in (Alloc(block, 512 * block, 0, origin), Free(block))]

    put_traces(history, "a" * 64, {0: Trace(events=tuple(events))})

    with history._database.reading() as connection:
        (size,) = connection.exec_driver_sql("SELECT length(document) FROM traces").one()
    assert size < 10 * len(events)
    assert len(get_traces(history, "a" * 64)[0].events) == 40_000
