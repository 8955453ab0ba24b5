"""The trace of one rank as a value, and the text in which other processes and the history keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, TypeVar

from planner.errors import PlannerError
from planner.events import (
    Alloc,
    Category,
    EmptyCache,
    Event,
    Free,
    FreeCompleted,
    Keep,
    Mark,
    Origin,
    Phase,
    Repeat,
    Role,
    Synchronize,
    Use,
    write_out_repeats,
)
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.job.json_text import is_plain_text
from planner.records import from_plain, to_plain
from planner.step_work import NO_WORK, WHOLE_DEVICE, Launch, LaunchKind, StepWork, kernel_row, read_work
from planner.timing.pending_frees import ToldEvents
from planner.tracing.batch_sizes import DrawnBatches

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did."""

    events: tuple[Event, ...]
    buckets: Mapping[str, Any] = field(default_factory=dict)
    """The account that DDP's reducer gives of itself; empty without DDP."""
    unknown_workspaces: tuple[str, ...] = ()
    """Kernels that take scratch memory of a size that is not known: nothing is counted for them."""
    other_kernels: str = ""
    """A sentence, where the installed torch has no kernels for the job's GPU."""
    other_cudnn: tuple[str, ...] = ()
    """The versions of torch's own cuDNN and of the one that was asked in its place, where they differ."""
    sharded_dims: tuple[int, ...] = ()
    """Sizes of the dims that are split along `dp_shard`."""
    seconds: float = 0.0
    repeats: tuple[Repeat, ...] = ()
    """Stretches of `events` that happen more often than they are written, in order."""
    parts: tuple[int, ...] = ()
    """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""
    adapted: Mapping[str, int] = field(default_factory=dict)
    """Elements that an adapter trains, by the name of the modules that it stands beside."""
    unified_bytes: int = 0
    """Of the optimizer's state, what lies in unified memory and is among no events."""

    assumed: tuple[str, ...] = ()
    """What was assumed where a GPU would have been timed, as sentences."""
    host: tuple[HostEvent, ...] = ()
    """What the rank holds on the host; of iterations that repeat, those that were run."""
    host_assumed: tuple[str, ...] = ()
    """What of the host could not be found out, as sentences."""

    drawn: tuple[DrawnBatches, ...] = ()
    """Of data loaders whose batches vary in size, as they were drawn ahead."""

    work: StepWork = NO_WORK
    """What the GPU computes in the last whole iteration that was run. Launches among the events name its kernels."""

    @property
    def is_timed(self) -> bool:
        """Whether launches stand among its events: what is free is a question of time (planner.timing)."""
        return any(type(event) is Launch for event in self.events)

    def as_told(self, told: ToldEvents) -> Trace:
        """With what an allocator is told in the place of its events."""
        return replace(self, events=told.events, repeats=told.repeats)

    def written_out(self) -> tuple[Event, ...]:
        """Every event that happens, in order."""
        return tuple(write_out_repeats(self.events, self.repeats)) if self.repeats else self.events


_ROWS_PER_LINE = 500
_MOST_LINE_CHARACTERS = 4 * 2**20
_MOST_NUMBER = 2**62
_MOST_TEXT = 10_000
_MOST_DIMS = 64
_TEXTS = ("unknown_workspaces", "other_cudnn", "assumed", "host_assumed")
_NUMBERS = ("sharded_dims", "parts")


def dumps(trace: Trace) -> str:
    """The text of a trace; every origin is written once. Equal traces have equal texts, but for `seconds`."""
    origins: dict[Origin, int] = {}
    events = [_row(event, origins) for event in trace.events]
    about = {
        "buckets": dict(trace.buckets),
        "unknown_workspaces": trace.unknown_workspaces,
        **({"other_kernels": trace.other_kernels} if trace.other_kernels else {}),
        **({"other_cudnn": trace.other_cudnn} if trace.other_cudnn else {}),
        "sharded_dims": trace.sharded_dims,
        "parts": trace.parts,
        **({"adapted": dict(trace.adapted)} if trace.adapted else {}),
        **({"unified_bytes": trace.unified_bytes} if trace.unified_bytes else {}),
        "assumed": trace.assumed,
        "origins": len(origins),
        "events": len(events),
        "host": len(trace.host),
        "host_assumed": trace.host_assumed,
        "repeats": [
            (repeat.first, repeat.after, repeat.times, repeat.iterations, list(chain.from_iterable(repeat.heirs)))
            for repeat in trace.repeats
        ],
        "seconds": trace.seconds,
        "kernels": len(trace.work.kernels),
        "launches": len(trace.work.launches),
        **({"launch_repeats": trace.work.repeats} if trace.work.repeats else {}),
        **({"drawn": [to_plain(each) for each in trace.drawn]} if trace.drawn else {}),
    }
    lines: list[Any] = [about]
    origin_rows = [(origin.op, origin.module, origin.shape, origin.dtype) for origin in origins]
    kernels = list(map(kernel_row, trace.work.kernels))
    for rows in (origin_rows, events, list(map(_host_row, trace.host)), kernels, list(trace.work.launches)):
        lines += (rows[start : start + _ROWS_PER_LINE] for start in range(0, len(rows), _ROWS_PER_LINE))
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)


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
        case Keep(block, collective):
            return ["k", block, collective]
        case Launch(kind, stream, what):
            return ["l", int(kind), stream, what]
        case Role(block, category, name):
            return ["r", block, category.value, name]
        case Mark(phase, iteration):
            return ["m", phase.value, iteration]
        case Synchronize():
            return ["s"]
        case EmptyCache():
            return ["e"]


def _host_row(event: HostEvent) -> list[Any]:
    match event:
        case HostAlloc(block, size, category, pinned, count):
            return ["a", block, size, category, pinned, count]
        case HostFree(block):
            return ["f", block]
        case Mark(phase, iteration):
            return ["m", phase.value, iteration]


def loads(text: str) -> Trace:
    """The trace that was written. Raises ValueError for any other text."""
    try:
        return _read(text)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError, PlannerError) as error:
        raise ValueError(f"no trace: {error}") from None


def _read(text: str) -> Trace:
    lines = _lines(text)
    about = json.loads(next(lines, ""))
    rows = _rows(lines)
    origins = [_origin(*row) for row in islice(rows, _number(about["origins"]))]
    events = tuple(_event(row, origins) for row in islice(rows, _number(about["events"])))
    host = tuple(_host_events(islice(rows, _number(about.get("host", 0)))))
    work_counts = [_number(about.get(name, 0)) for name in ("kernels", "launches")]
    kernel_rows, launch_rows = (list(islice(rows, count)) for count in work_counts)
    work = read_work(kernel_rows, launch_rows, about.get("launch_repeats", ()))
    announced = (about["origins"], about["events"], about.get("host", 0), *work_counts)
    read = (origins, events, host, work.kernels, work.launches)
    if announced != tuple(map(len, read)) or next(rows, None) is not None:
        raise ValueError("the trace is cut off, or something follows it")
    launched = [event.what for event in events if type(event) is Launch and event.kind == LaunchKind.KERNEL]
    if launched and max(launched) >= len(work.kernels):
        raise ValueError("a kernel that is launched is not there")
    repeats = tuple(_repeat(*row) for row in about.get("repeats", ()))
    _require_in_order([(repeat.first, repeat.after) for repeat in repeats], len(events))
    _require_in_order([(first, after) for first, after, _ in work.repeats], len(work.launches))
    lists: dict[str, Any] = {name: tuple(map(_text, about.get(name, ()))) for name in _TEXTS}
    lists |= {name: tuple(map(_number, about[name])) for name in _NUMBERS}
    return Trace(
        events=events,
        host=host,
        repeats=repeats,
        buckets=_buckets(about["buckets"]),
        other_kernels=_text(about.get("other_kernels", "")),
        seconds=_seconds(about["seconds"]),
        adapted={_text(name): _number(count) for name, count in about.get("adapted", {}).items()},
        unified_bytes=_number(about.get("unified_bytes", 0)),
        work=work,
        drawn=tuple(from_plain(DrawnBatches, _checked(each)) for each in about.get("drawn", ())),
        **lists,
    )


def _checked(value: Any) -> Any:
    """A record whose numbers and texts are within their limits."""
    match value:
        case dict():
            return {_text(name): _checked(member) for name, member in value.items()}
        case list():
            return [_checked(member) for member in value]
        case str():
            return _text(value)
        case bool():
            return value
    return _number(value)


def _lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        if end - start > _MOST_LINE_CHARACTERS:
            raise ValueError("a line of the trace is too long")
        yield text[start:end]
        start = end + 1


def _rows(lines: Iterable[str]) -> Iterator[Any]:
    for line in lines:
        rows = json.loads(line)
        if not isinstance(rows, list) or len(rows) > _ROWS_PER_LINE:
            raise ValueError("no rows")
        yield from rows


def _origin(op: Any, module: Any, shape: Sequence[Any], dtype: Any) -> Origin:
    if len(shape) > _MOST_DIMS:
        raise ValueError("a shape of too many dims")
    return Origin(_text(op), _text(module), tuple(map(_number, shape)), _text(dtype))


def _event(row: Sequence[Any], origins: Sequence[Origin]) -> Event:
    if row[0] == "a":
        _, block, size, stream, number, *pool = row
        origin = None if number == -1 else origins[_number(number)]
        return Alloc(_number(block), _number(size), _number(stream), origin, *map(_number, pool))
    return _read_row(_READERS, row)


def _host_events(rows: Iterable[Sequence[Any]]) -> Iterator[HostEvent]:
    """Raises KeyError for a block that ends before it began."""
    blocks = set[int]()
    for row in rows:
        match event := _read_row(_HOST_READERS, row):
            case HostAlloc():
                blocks.add(event.block)
            case HostFree():
                blocks.remove(event.block)
        yield event


def _read_row(readers: Mapping[str, Callable[..., Read]], row: Sequence[Any]) -> Read:
    if (read := readers.get(row[0])) is None:
        raise ValueError(f"no event: {row[0]!r:.40}")
    return read(*row[1:])


def _repeat(first: Any, after: Any, times: Any, iterations: Any = 0, heirs: Sequence[Any] = ()) -> Repeat:
    """Traces that were kept before repetitions had heirs say neither."""
    blocks = [_number(heir) for heir in heirs]
    pairs = tuple(zip(blocks[::2], blocks[1::2], strict=True))
    return Repeat(_number(first), _number(after), _number(times), _number(iterations), pairs)


def _require_in_order(stretches: Sequence[tuple[int, int]], count: int) -> None:
    ends = (0, *(after for _, after in stretches))
    if any(not end <= first < after <= count for end, (first, after) in zip(ends, stretches, strict=False)):
        raise ValueError("what repeats is not there")


def _buckets(value: Any) -> dict[str, Any]:
    if not all(isinstance(part, str | int | float | bool) and part == part for part in value.values()):
        raise ValueError("no account of buckets")
    return {_text(name): _text(part) if isinstance(part, str) else part for name, part in value.items()}


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no time")
    return float(value)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no count, size or number of a block")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("no truth value")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _MOST_TEXT or not is_plain_text(value):
        raise ValueError("no name")
    return value


def _read_mark(phase: Any, iteration: Any) -> Mark:
    return Mark(Phase(phase), _number(iteration))


def _launch(kind: Any, stream: Any, what: Any) -> Launch:
    whole = stream == WHOLE_DEVICE
    return Launch(LaunchKind(_number(kind)), WHOLE_DEVICE if whole else _number(stream), _number(what))


_READERS: dict[str, Callable[..., Event]] = {
    "f": lambda block: Free(_number(block)),
    "u": lambda block, stream: Use(_number(block), _number(stream)),
    "p": lambda block: FreeCompleted(_number(block)),
    "k": lambda block, collective: Keep(_number(block), _number(collective)),
    "l": _launch,
    "r": lambda block, category, name: Role(_number(block), Category(category), _text(name)),
    "m": _read_mark,
    "s": Synchronize,
    "e": EmptyCache,
}
_HOST_READERS: dict[str, Callable[..., HostEvent]] = {
    "a": lambda block, size, category, pinned, count: HostAlloc(
        _number(block), _number(size), HostCategory(category), _flag(pinned), _number(count)
    ),
    "f": lambda block: HostFree(_number(block)),
    "m": _read_mark,
}
