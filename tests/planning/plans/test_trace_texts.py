"""A trace survives the way between two processes, whatever it is."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.events import (
    Alloc,
    Category,
    EmptyCache,
    Free,
    FreeCompleted,
    Mark,
    Origin,
    Phase,
    Repeat,
    Role,
    Synchronize,
    Use,
)
from planner.tracing import rank_trace
from planner.tracing.batch_sizes import DrawnBatches, TriedBatch, VaryingSize
from planner.tracing.rank_trace import Trace

numbers = st.integers(0, 2**62)
texts = st.text(max_size=12)
origins = st.builds(
    Origin, op=texts, module=texts, shape=st.lists(numbers, max_size=4).map(tuple), dtype=st.sampled_from(["", "int8"])
)
events = st.one_of(
    st.builds(Alloc, numbers, numbers, st.integers(0, 40), st.none() | origins),
    st.builds(Free, numbers),
    st.builds(Use, numbers, st.integers(0, 40)),
    st.builds(FreeCompleted, numbers),
    st.builds(Role, numbers, st.sampled_from(Category), texts),
    st.builds(Mark, st.sampled_from(Phase), st.integers(0, 100)),
    st.just(Synchronize()),
    st.just(EmptyCache()),
)
traces = st.builds(
    Trace,
    events=st.lists(events, max_size=30).map(tuple),
    buckets=st.dictionaries(texts, texts | numbers | st.booleans(), max_size=4),
    unknown_workspaces=st.lists(texts, max_size=3).map(tuple),
    seconds=st.floats(0, 1e6),
)


def repeated(trace: Trace, times: int) -> Trace:
    """With its second half, and before that its first, happening more often than they are written."""
    half, whole = len(trace.events) // 2, len(trace.events)
    return dataclasses.replace(trace, repeats=(Repeat(0, half, 1), Repeat(half, whole, times)) if half else ())


@given(st.builds(repeated, traces, numbers))
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_again(trace: Trace) -> None:
    assert rank_trace.loads(rank_trace.dumps(trace)) == trace


SIZE = VaryingSize(name="input_ids", smallest=(2, 8), largest=(2, 64), different=3)
DRAWN = DrawnBatches(
    size=SIZE,
    drawn=40,
    epoch=40,
    tried=(TriedBatch(name="largest batch", shape=(2, 64), as_large=1, iteration=9),),
    trains=True,
    order=((8,), (64,), (24,)),
    given=((8,), (24,)),
)


def test_batches_that_were_drawn_ahead_are_read_again() -> None:
    trace = Trace((Free(1),), drawn=(DRAWN,))
    assert rank_trace.loads(rank_trace.dumps(trace)) == trace


def test_an_origin_that_comes_often_is_written_once() -> None:
    origin = Origin("aten.mm", "layers.0", (2, 3), "float32")
    trace = Trace(tuple(Alloc(block, 24, 0, origin) for block in range(100)))

    assert rank_trace.dumps(trace).count("aten.mm") == 1


def test_what_is_no_event_is_refused() -> None:
    written = rank_trace.dumps(Trace((Free(1),))).replace('"f"', '"x"')

    with pytest.raises(ValueError, match="no event"):
        rank_trace.loads(written)


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[" * 1_000_000, "\n" * 1000, '{"events":1e400}', "null", "\ud800", '{"origins":0,"events":-1}',
        rank_trace.dumps(Trace((Free(1),))) + "\n[[]]",
        rank_trace.dumps(Trace((Free(1),), repeats=(Repeat(0, 2, 1),))),
        rank_trace.dumps(Trace((Free(1),), repeats=(Repeat(1, 1, 1),))),
        rank_trace.dumps(Trace((Free(1), Free(2)), repeats=(Repeat(0, 2, 1), Repeat(1, 2, 1)))),
        rank_trace.dumps(Trace((Free(1), Free(2)))).replace('"f",1', '"f",true'),
        rank_trace.dumps(Trace((Free(1),))).replace("[[\"f\",1]]", "[[\"f\"," + "9" * 5000 + "]]"),
        rank_trace.dumps(Trace((Alloc(0, 8, 0, Origin("mm")),))).replace("0]]", "7]]"),
        rank_trace.dumps(Trace((Free(1),), drawn=(DRAWN,))).replace('"epoch":40', '"epoch":-1'),
        rank_trace.dumps(Trace((Free(1),), drawn=(DRAWN,))).replace('"epoch"', '"era"'),
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  whatever it says
        rank_trace.loads(text)


@given(traces, st.data())
@settings(max_examples=100, deadline=None)
def test_a_text_that_was_cut_or_changed_is_a_trace_or_refused(trace: Trace, data: st.DataObject) -> None:
    text = rank_trace.dumps(trace)
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(ValueError):
        assert isinstance(rank_trace.loads(changed), Trace)
