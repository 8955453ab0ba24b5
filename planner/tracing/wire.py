"""Traces as plain JSON values, for the way between two processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from planner.events import Alloc, Category, EmptyCache, Event, Free, Mark, Origin, Passed, Phase, Role, Synchronize, Use
from planner.tracing.traced import Trace


def to_json(trace: Trace) -> dict[str, Any]:
    """Plain values; every origin is written once."""
    origins: dict[Origin, int] = {}
    events = [_row(event, origins) for event in trace.events]
    return {
        "origins": [[each.op, each.module, list(each.shape), each.dtype] for each in origins],
        "events": events,
        "buckets": dict(trace.buckets),
        "unknown_workspaces": list(trace.unknown_workspaces),
        "sharded_dims": list(trace.sharded_dims),
        "parts": list(trace.parts),
        "seconds": trace.seconds,
    }


def from_json(document: dict[str, Any]) -> Trace:
    """The trace that was written."""
    origins = [Origin(op, module, tuple(shape), dtype) for op, module, shape, dtype in document["origins"]]
    return Trace(
        events=tuple(_events(document["events"], origins)),
        buckets=document["buckets"],
        unknown_workspaces=tuple(document["unknown_workspaces"]),
        sharded_dims=tuple(document.get("sharded_dims", ())),
        parts=tuple(document.get("parts", ())),
        seconds=document["seconds"],
    )


def _row(event: Event, origins: dict[Origin, int]) -> list[Any]:
    match event:
        case Alloc(block, size, stream, origin):
            number = -1 if origin is None else origins.setdefault(origin, len(origins))
            return ["a", block, size, stream, number]
        case Free(block):
            return ["f", block]
        case Use(block, stream):
            return ["u", block, stream]
        case Passed(block):
            return ["p", block]
        case Role(block, category, name):
            return ["r", block, category.value, name]
        case Mark(phase, iteration):
            return ["m", phase.value, iteration]
        case Synchronize():
            return ["s"]
        case EmptyCache():
            return ["e"]


def _events(rows: Iterable[Sequence[Any]], origins: Sequence[Origin]) -> Iterable[Event]:
    for row in rows:
        match row:
            case ["a", block, size, stream, number]:
                yield Alloc(block, size, stream, origins[number] if number >= 0 else None)
            case ["f", block]:
                yield Free(block)
            case ["u", block, stream]:
                yield Use(block, stream)
            case ["p", block]:
                yield Passed(block)
            case ["r", block, category, name]:
                yield Role(block, Category(category), name)
            case ["m", phase, iteration]:
                yield Mark(Phase(phase), iteration)
            case ["s"]:
                yield Synchronize()
            case ["e"]:
                yield EmptyCache()
            case _:
                raise ValueError(f"no event: {row}")
