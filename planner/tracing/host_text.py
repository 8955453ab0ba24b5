"""Rows of a trace's text for what it holds on the host; a reader checks every value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from planner.events import Mark, Phase
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

_MOST_NUMBER = 2**62
_MOST_TEXT = 10_000


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
        if (read := _READERS.get(row[0])) is None:
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
        bytes=_number(size), category=HostCategory(category), pinned=pinned, backing=Backing(backing), name=name,
        count=_number(count),
    )  # fmt: skip
    return HostAlloc(_number(block), held)


def _loader(loader: Any, workers: Any, ahead: Any, pin_memory: Any, spawned: Any, *tensors: Any) -> HostEvent:
    if type(pin_memory) is not bool or type(spawned) is not bool:
        raise ValueError("no data loader")
    return LoaderStarted(
        loader=_number(loader), workers=_number(workers), ahead=_number(ahead), pin_memory=pin_memory,
        spawned=spawned, tensors=tuple(_number(each) for each in tensors),
    )  # fmt: skip


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no count or size of a block of the host")
    return value


_READERS: dict[str, Callable[..., HostEvent]] = {
    "a": _alloc,
    "f": lambda block: HostFree(_number(block)),
    "b": lambda *tensors: BatchTaken(tuple(_number(each) for each in tensors)),
    "l": _loader,
    "e": lambda loader: LoaderEnded(_number(loader)),
    "m": lambda phase, iteration: Mark(Phase(phase), _number(iteration)),
}
