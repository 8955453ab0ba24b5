"""Other ways in which a rank may run, as traces that are judged too: with Inductor's cache filled, and with other
workspaces of cuDNN."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
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


_OF_CONVOLUTIONS = "cudnn_convolution.workspace"
LARGEST_DIFFERENCE = 0.09
"""Between the workspaces that cuDNN 9.20 asks for by properties of an H100 and by a handle of one: 38 of the 225 of
VGG19 differ, by 0.1 to 9 %, and of eight networks on A100 and RTX 4090 none. Reserved bytes were up to 28 % apart, as a
cache is cut up otherwise."""
_REPLAYS = 16
_SHARE = 0.5
"""Of the sizes, how many are changed in each replay. So the eight networks lie between the replays."""


def has_workspaces(events: Sequence[Event]) -> bool:
    """Whether cuDNN was asked for a convolution in them."""
    return any(_is_workspace(event) for event in events)


def vary_workspaces(events: Sequence[Event]) -> Iterator[tuple[Event, ...]]:
    """The same with other workspaces of convolutions, equal ones alike; nothing where there are none."""
    places = [place for place, event in enumerate(events) if _is_workspace(event)]
    for seed in range(_REPLAYS if places else 0):
        drawn, sizes, varied = random.Random(seed), dict[int, int](), list(events)
        for place in places:
            alloc = events[place]
            assert isinstance(alloc, Alloc)
            asked = alloc.requested_bytes
            if asked not in sizes:
                difference = drawn.uniform(-LARGEST_DIFFERENCE, LARGEST_DIFFERENCE)
                sizes[asked] = max(round(asked * (1 + difference * (drawn.random() < _SHARE))), 1)
            varied[place] = replace(alloc, requested_bytes=sizes[asked])
        yield tuple(varied)


def _is_workspace(event: Event) -> bool:
    return isinstance(event, Alloc) and event.origin is not None and event.origin.op == _OF_CONVOLUTIONS
