"""A trace survives the way between two processes, whatever it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.events import Alloc, Category, EmptyCache, Free, Mark, Origin, Passed, Phase, Role, Synchronize, Use
from planner.tracing import wire
from planner.tracing.traced import Trace

numbers = st.integers(0, 2**62)
texts = st.text(max_size=12)
origins = st.builds(
    Origin, op=texts, module=texts, shape=st.lists(numbers, max_size=4).map(tuple), dtype=st.sampled_from(["", "int8"])
)
events = st.one_of(
    st.builds(Alloc, numbers, numbers, st.integers(0, 40), st.none() | origins),
    st.builds(Free, numbers),
    st.builds(Use, numbers, st.integers(0, 40)),
    st.builds(Passed, numbers),
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


@given(traces)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_again(trace: Trace) -> None:
    assert wire.from_json(json.loads(json.dumps(wire.to_json(trace)))) == trace


def test_an_origin_that_comes_often_is_written_once() -> None:
    origin = Origin("aten.mm", "layers.0", (2, 3), "float32")
    trace = Trace(tuple(Alloc(block, 24, 0, origin) for block in range(100)))

    assert wire.to_json(trace)["origins"] == [["aten.mm", "layers.0", [2, 3], "float32"]]


def test_what_is_no_event_is_refused() -> None:
    document = wire.to_json(Trace(())) | {"events": [["x", 1]]}

    with pytest.raises(ValueError, match="no event"):
        wire.from_json(document)
