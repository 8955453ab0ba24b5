"""Writes and reads traces as text, for other processes and the history.

Lines of JSON: what a trace is besides its events, then origins, then events, many to a line. A reader takes one line at
a time and checks every value, so that a text of code of users costs no more than its length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from planner.events import (
    Alloc,
    Category,
    EmptyCache,
    Event,
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
from planner.job.json_text import is_plain_text
from planner.rollout.engine_figures import EngineFigures
from planner.tracing.host_text import read_rows, rows_of
from planner.tracing.traced import Trace

_ROWS_PER_LINE = 500
_MOST_LINE_CHARACTERS = 4 * 2**20
_MOST_NUMBER = 2**62
_MOST_TEXT = 10_000
_MOST_DIMS = 64


def dumps(trace: Trace) -> str:
    """The text of a trace; every origin is written once. Equal traces have equal texts, but for `seconds`."""
    origins: dict[Origin, int] = {}
    events = [_row(event, origins) for event in trace.events]
    about = {
        "buckets": dict(trace.buckets),
        "unknown_workspaces": list(trace.unknown_workspaces),
        "counted_workspaces": list(trace.counted_workspaces),
        "workspace_margin_bytes": trace.workspace_margin_bytes,
        "sharded_dims": list(trace.sharded_dims),
        "parts": list(trace.parts),
        "assumed": list(trace.assumed),
        "origins": len(origins),
        "events": len(events),
        "host": len(trace.host),
        "host_assumed": list(trace.host_assumed),
        "repeats": [
            [each.first, each.after, each.times, each.iterations, [number for pair in each.heirs for number in pair]]
            for each in trace.repeats
        ],
        "seconds": trace.seconds,
        **({} if trace.engine is None else {"engine": asdict(trace.engine)}),
    }
    rows: Iterable[list[Any]] = ([each.op, each.module, list(each.shape), each.dtype] for each in origins)
    return "\n".join(
        [
            _json(about),
            *map(_json, _batches(rows)),
            *map(_json, _batches(events)),
            *map(_json, _batches(rows_of(trace.host))),
        ]
    )


def loads(text: str) -> Trace:
    """The trace that was written. Raises ValueError for any other text."""
    try:
        return _read(text)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no trace: {error}") from None


def _read(text: str) -> Trace:
    lines = _lines(text)
    about = json.loads(next(lines, ""))
    rows = (row for line in lines for row in _rows(json.loads(line)))
    origins = [_origin(row) for row in islice(rows, _number(about["origins"]))]
    events = tuple(_events(islice(rows, _number(about["events"])), origins))
    host = tuple(read_rows(islice(rows, _number(about.get("host", 0)))))
    if (
        len(host) != about.get("host", 0)
        or len(origins) != about["origins"]
        or len(events) != about["events"]
        or next(rows, None) is not None
    ):
        raise ValueError("the trace is cut off, or something follows it")
    return Trace(
        events=events,
        buckets=_buckets(about["buckets"]),
        unknown_workspaces=tuple(_text(each) for each in about["unknown_workspaces"]),
        counted_workspaces=tuple(_text(each) for each in about.get("counted_workspaces", ())),
        workspace_margin_bytes=_number(about.get("workspace_margin_bytes", 0)),
        sharded_dims=tuple(_number(each) for each in about["sharded_dims"]),
        parts=tuple(_number(each) for each in about["parts"]),
        assumed=tuple(_text(each) for each in about.get("assumed", ())),
        repeats=_repeats(about.get("repeats", ()), len(events)),
        host=host,
        host_assumed=tuple(_text(each) for each in about.get("host_assumed", ())),
        seconds=_seconds(about["seconds"]),
        engine=_engine(about["engine"]) if "engine" in about else None,
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _batches(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    remaining = iter(rows)
    while batch := list(islice(remaining, _ROWS_PER_LINE)):
        yield batch


def _lines(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if end - at > _MOST_LINE_CHARACTERS:
            raise ValueError("a line of the trace is too long")
        yield text[at:end]
        at = end + 1


def _rows(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > _ROWS_PER_LINE:
        raise ValueError("no rows")
    return value


def _row(event: Event, origins: dict[Origin, int]) -> list[Any]:
    match event:
        case Alloc(block, size, stream, origin, pool):
            number = -1 if origin is None else origins.setdefault(origin, len(origins))
            return ["a", block, size, stream, number, *([pool] if pool else [])]
        case Free(block):
            return ["f", block]
        case Use(block, stream):
            return ["u", block, stream]
        case FreeCompleted(block):
            return ["p", block]
        case Role(block, category, name):
            return ["r", block, category.value, name]
        case Mark(phase, iteration):
            return ["m", phase.value, iteration]
        case Synchronize():
            return ["s"]
        case EmptyCache():
            return ["e"]


_READERS: dict[str, Callable[..., Event]] = {
    "f": lambda block: Free(_number(block)),
    "u": lambda block, stream: Use(_number(block), _number(stream)),
    "p": lambda block: FreeCompleted(_number(block)),
    "r": lambda block, category, name: Role(_number(block), Category(category), _text(name)),
    "m": lambda phase, iteration: Mark(Phase(phase), _number(iteration)),
    "s": Synchronize,
    "e": EmptyCache,
}


def _events(rows: Iterable[Sequence[Any]], origins: Sequence[Origin]) -> Iterator[Event]:
    for row in rows:
        if row[0] == "a":
            _, block, size, stream, number, *pool = row
            origin = None if number == -1 else origins[_number(number)]
            yield Alloc(_number(block), _number(size), _number(stream), origin, *map(_number, pool))
        elif (read := _READERS.get(row[0])) is not None:
            yield read(*row[1:])
        else:
            raise ValueError(f"no event: {row[0]!r:.40}")


def _origin(row: Sequence[Any]) -> Origin:
    op, module, shape, dtype = row
    if len(shape) > _MOST_DIMS:
        raise ValueError("a shape of too many dims")
    return Origin(_text(op), _text(module), tuple(_number(size) for size in shape), _text(dtype))


def _repeats(rows: Sequence[Sequence[Any]], events: int) -> tuple[Repeat, ...]:
    found = tuple(_repeat(*row) for row in rows)
    ends = [0, *(each.after for each in found)]
    if any(not before <= each.first < each.after <= events for before, each in zip(ends, found, strict=False)):
        raise ValueError("what repeats is not there")
    return found


def _repeat(first: Any, after: Any, times: Any, iterations: Any = 0, heirs: Sequence[Any] = ()) -> Repeat:
    """Traces that were kept before repetitions had heirs say neither."""
    blocks = [_number(each) for each in heirs]
    pairs = tuple(zip(blocks[::2], blocks[1::2], strict=True))
    return Repeat(_number(first), _number(after), _number(times), _number(iterations), pairs)


def _buckets(value: Any) -> dict[str, Any]:
    if not all(isinstance(each, str | int | float | bool) and each == each for each in value.values()):
        raise ValueError("no account of buckets")
    return {_text(name): _text(each) if isinstance(each, str) else each for name, each in value.items()}


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no time")
    return float(value)


def _engine(about: dict[str, Any]) -> EngineFigures:
    sizes = {name: _number(about[name]) for name in ("kv_layers", "activation_bytes", "kv_token_bytes")}
    return EngineFigures(
        **sizes,
        weight_tensors=tuple(_number(each) for each in about["weight_tensors"]),
        assumed=tuple(_text(each) for each in about["assumed"]),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no count, size or number of a block")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _MOST_TEXT or not is_plain_text(value):
        raise ValueError("no name")
    return value
