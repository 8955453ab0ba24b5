"""Traces carry what was traced of an engine, in their texts too."""

from __future__ import annotations

import pytest

from planner.tracing import rank_trace
from planner.tracing.rank_trace import EngineFigures, Trace

FIGURES = EngineFigures(
    weight_tensors=(8, 9), kv_layers=2, activation_bytes=3, kv_token_bytes=4, assumed=("a sentence",)
)


def test_a_text_gives_the_figures_back() -> None:
    trace = Trace(events=(), engine=FIGURES)

    assert rank_trace.loads(rank_trace.dumps(trace)) == trace


def test_a_trace_without_an_engine_has_no_word_of_one() -> None:
    assert '"engine"' not in rank_trace.dumps(Trace(events=()))


def test_a_size_that_is_none_is_refused() -> None:
    text = rank_trace.dumps(Trace(events=(), engine=FIGURES)).replace("[8,9]", "[8,-9]")

    with pytest.raises(ValueError, match="no count, size or number"):
        rank_trace.loads(text)
