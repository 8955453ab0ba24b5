"""A compiled job's two first runs: with Inductor's cache empty, where its kernels are timed, and filled."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from planner.events import TIMING, Alloc, Event, Free, FreeCompleted, Keep, Role, Use
from planner.tracing.rank_trace import Trace


def without_timing(trace: Trace) -> Trace | None:
    """The trace of a run whose cache is filled; None where nothing was timed."""
    timed = {
        event.block
        for event in trace.events
        if isinstance(event, Alloc) and event.origin is not None and event.origin.op == TIMING
    }
    if not timed:
        return None
    is_left_out = [_is_of(event, timed) for event in trace.events]
    before = [0, *accumulate(is_left_out)]
    return replace(
        trace,
        events=tuple(event for event, left_out in zip(trace.events, is_left_out, strict=True) if not left_out),
        repeats=tuple(
            replace(repeat, first=repeat.first - before[repeat.first], after=repeat.after - before[repeat.after])
            for repeat in trace.repeats
        ),
    )


def _is_of(event: Event, blocks: set[int]) -> bool:
    return isinstance(event, Alloc | Free | Use | FreeCompleted | Keep | Role) and event.block in blocks
