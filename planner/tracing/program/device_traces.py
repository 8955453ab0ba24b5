"""Divides the trace of a process with several GPUs: what each one's allocator was told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.events import Alloc, Event, Free, FreeCompleted, Keep, Role, Use
from planner.step_work import StepWork
from planner.tracing.rank_trace import Trace

STREAM_BITS = 24
"""Of a stream's number; above them is which device it is of (planner/paper/native/memory.cpp)."""
_OF_A_BLOCK = (Free, FreeCompleted, Keep, Role)


def number_of_device(event: Alloc) -> int:
    """Which of the process's devices it asks, in the order of their first blocks."""
    return event.stream >> STREAM_BITS


def traces_of_devices(trace: Trace) -> list[Trace]:
    """One for each device, in their order; with several of them nothing is folded, and nobody knows how long their work
    takes beside each other."""
    if not any(number_of_device(event) for event in trace.events if isinstance(event, Alloc)):
        return [trace]
    events = list(trace.written_out())
    owner = {event.block: number_of_device(event) for event in events if isinstance(event, Alloc)}
    return [
        replace(
            trace, events=tuple(_of_device(events, owner, number)), repeats=(), work=StepWork(trace.work.kernels)
        )
        for number in range(max(owner.values()) + 1)
    ]


def _of_device(events: Sequence[Event], owner: dict[int, int], number: int) -> Iterator[Event]:
    """Its own, and what is for all: marks, launches, waits, emptied caches. Its streams are numbered as those of one alone."""
    own_stream = (1 << STREAM_BITS) - 1
    for event in events:
        if isinstance(event, Alloc | Use):
            if owner[event.block] == number:
                yield replace(event, stream=event.stream & own_stream)
        elif not isinstance(event, _OF_A_BLOCK) or owner[event.block] == number:
            yield event
