"""Divides the trace of a process with several GPUs: what each one's allocator was told."""

from __future__ import annotations

from dataclasses import replace

from planner.events import Alloc, Free, FreeCompleted, Keep, Role, Use
from planner.tracing.rank_trace import Trace

STREAM_BITS = 24
"""Of a stream's number; above them is which device it is of (planner/paper/native/memory.cpp)."""
_OF_A_BLOCK = (Alloc, Free, FreeCompleted, Keep, Role, Use)
"""All else is for every device: marks, waits, emptied caches, and launches, which one host makes."""


def traces_of_devices(trace: Trace) -> list[Trace]:
    """One for each device, in the order of their first blocks. With several of them nothing is folded, and the time of
    an iteration is left out: it is that of all devices together."""
    if not any(event.stream >> STREAM_BITS for event in trace.events if isinstance(event, Alloc)):
        return [trace]
    events = list(trace.written_out())
    owner = {event.block: event.stream >> STREAM_BITS for event in events if isinstance(event, Alloc)}
    work = replace(trace.work, launches=())
    return [
        replace(
            trace,
            events=tuple(
                event for event in events if not isinstance(event, _OF_A_BLOCK) or owner[event.block] == number
            ),
            repeats=(),
            work=work,
        )
        for number in range(max(owner.values()) + 1)
    ]
