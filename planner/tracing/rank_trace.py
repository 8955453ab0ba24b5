"""The trace of one rank as a value, and the text in which other processes and the history keep it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
    write_out_repeats,
)
from planner.host_events import (
    Backing,
    BatchTaken,
    HostAlloc,
    HostBlock,
    HostCategory,
    HostEvent,
    HostFree,
    LoaderEnded,
    LoaderStarted,
)
from planner.job.json_text import is_plain_text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One rank of an engine; bytes."""

    weight_tensors: tuple[int, ...]
    """The sizes of its parameters, as the engine joins and divides them, and of its table of rotations, in the order in
    which they are made."""
    kv_layers: int
    """Layers with a KV cache, each of which is a tensor."""
    activation_bytes: int
    """What one forward of the engine's largest batch and its sampling ask for beyond the weights, at their peak."""
    kv_token_bytes: int
    """One token of the KV cache, all layers."""
    assumed: tuple[str, ...] = ()
    """What was taken for granted, as sentences."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did."""

    events: tuple[Event, ...]
    buckets: Mapping[str, Any] = field(default_factory=dict)
    """The account that DDP's reducer gives of itself; empty without DDP."""
    unknown_workspaces: tuple[str, ...] = ()
    """Kernels that take scratch memory of a size that is not known: nothing is counted for them."""
    counted_workspaces: tuple[str, ...] = ()
    """On whose word those of other kernels are counted, as sentences."""
    workspace_margin_bytes: int = 0
    """How much more one of them may take, where it was interpolated between two measured sizes."""
    sharded_dims: tuple[int, ...] = ()
    """Sizes of the dims that are split along `dp_shard`."""
    seconds: float = 0.0
    repeats: tuple[Repeat, ...] = ()
    """Stretches of `events` that happen more often than they are written, in order."""
    parts: tuple[int, ...] = ()
    """For each replica the number of the part of the optimizer that it has; empty where each has all of it."""

    assumed: tuple[str, ...] = ()
    """What was assumed where a GPU would have been timed, as sentences."""
    host: tuple[HostEvent, ...] = ()
    """What the rank holds on the host; of iterations that repeat, those that were run."""
    host_assumed: tuple[str, ...] = ()
    """What of the host could not be found out, as sentences."""

    engine: EngineFigures | None = None
    """Of the inference engine beside the trainer; None without one."""

    def written_out(self) -> tuple[Event, ...]:
        """Everything that happens, one event after the other."""
        return tuple(write_out_repeats(self.events, self.repeats)) if self.repeats else self.events


def rows_of(events: Sequence[HostEvent]) -> Iterator[list[Any]]:
    """One row for each event."""
    for event in events:
        match event:
            case HostAlloc(block, held):
                about = (held.bytes, held.category.value, held.pinned, held.backing.value, held.name, held.count)
                yield ["a", block, *about]
            case HostFree(block):
                yield ["f", block]
            case BatchTaken(tensors):
                yield ["b", *tensors]
            case LoaderStarted():
                flags = (event.pin_memory, event.spawned)
                yield ["l", event.loader, event.workers, event.ahead, *flags, *event.tensors]
            case LoaderEnded(loader):
                yield ["e", loader]
            case Mark(phase, iteration):
                yield ["m", phase.value, iteration]


def read_rows(rows: Iterable[Sequence[Any]]) -> Iterator[HostEvent]:
    """The events that were written. Raises ValueError, TypeError, KeyError or IndexError for anything else."""
    alive: set[int] = set()
    loading: set[int] = set()
    for row in rows:
        if (read := _HOST_READERS.get(row[0])) is None:
            raise ValueError(f"no event of the host: {row[0]!r:.40}")
        event = read(*row[1:])
        if isinstance(event, HostAlloc):
            alive.add(event.block)
        if isinstance(event, HostFree):
            alive.remove(event.block)
        if isinstance(event, LoaderStarted):
            loading.add(event.loader)
        if isinstance(event, LoaderEnded):
            loading.remove(event.loader)
        yield event


def _alloc(block: Any, size: Any, category: Any, pinned: Any, backing: Any, name: Any, count: Any) -> HostEvent:
    if type(pinned) is not bool or type(name) is not str or len(name) > _MOST_TEXT or not is_plain_text(name):
        raise ValueError("no block of the host")
    held = HostBlock(
        bytes=_host_number(size), category=HostCategory(category), pinned=pinned, backing=Backing(backing), name=name,
        count=_host_number(count),
    )  # fmt: skip
    return HostAlloc(_host_number(block), held)


def _loader(loader: Any, workers: Any, ahead: Any, pin_memory: Any, spawned: Any, *tensors: Any) -> HostEvent:
    if type(pin_memory) is not bool or type(spawned) is not bool:
        raise ValueError("no data loader")
    return LoaderStarted(
        loader=_host_number(loader), workers=_host_number(workers), ahead=_host_number(ahead), pin_memory=pin_memory,
        spawned=spawned, tensors=tuple(_host_number(each) for each in tensors),
    )  # fmt: skip


def _host_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no count or size of a block of the host")
    return value


_HOST_READERS: dict[str, Callable[..., HostEvent]] = {
    "a": _alloc,
    "f": lambda block: HostFree(_host_number(block)),
    "b": lambda *tensors: BatchTaken(tuple(_host_number(each) for each in tensors)),
    "l": _loader,
    "e": lambda loader: LoaderEnded(_host_number(loader)),
    "m": lambda phase, iteration: Mark(Phase(phase), _host_number(iteration)),
}


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
