"""One native record as an event, with its origin."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch

from planner.events import Alloc, EmptyCache, Event, Free, Origin, Role, Synchronize, Use
from planner.paper.repetition import Again, Copy, Place, Repetition

Placed = Event | Place | Repetition | Again | Copy
"""What Python adds between two records, besides."""


@dataclass(frozen=True, slots=True)
class RecordKinds:
    """How the native library numbers the kinds of its records, by their names."""

    alloc: int
    free: int
    use: int
    synchronize: int
    empty_cache: int


class Origins:
    """One Origin for all blocks that come from the same place."""

    def __init__(self, native: ctypes.CDLL, scopes: dict[str, int]) -> None:
        self._ops = [native.paper_name(i).decode().replace("::", ".") for i in range(native.paper_name_count())]
        self._paths = list(scopes)
        count = native.paper_shape_count()
        self._shapes = (ctypes.c_int64 * count).from_address(native.paper_shapes()) if count else []
        self._known: dict[tuple[int, int, tuple[int, ...], int], Origin] = {}

    def of(self, op: int, scope: int, shape_index: int, dtype: int) -> Origin:
        shape = self._shape(shape_index)
        key = (op, scope, shape, dtype)
        if key not in self._known:
            self._known[key] = Origin(self._ops[op], self._paths[scope], shape, _dtype_names().get(dtype, ""))
        return self._known[key]

    def _shape(self, index: int) -> tuple[int, ...]:
        if index < 0:
            return ()
        dims = self._shapes[index]
        return tuple(self._shapes[index + 1 : index + 1 + dims])


@cache
def _dtype_names() -> dict[int, str]:
    """By torch's own numbers of its dtypes (c10::ScalarType)."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {int(torch.ops.paper.dtype_number(dtype)): str(dtype).removeprefix("torch.") for dtype in found}


def renumber(placed: Placed, numbers: Mapping[int, int]) -> Placed:
    if isinstance(placed, Role):
        return Role(numbers[placed.block], placed.category, placed.name)
    if isinstance(placed, Copy):
        return replace(placed, bound=tuple((numbers[block], numbers[there]) for block, there in placed.bound))
    return placed


def event_of(
    record: tuple[int, ...], kinds: RecordKinds, origins: Origins | None, numbers: Mapping[int, int] | None
) -> Event:
    kind, op, scope, stream, block, size, shape, dtype, _, pool = record
    if numbers is not None and kind in (kinds.alloc, kinds.free, kinds.use):
        block = numbers[block]
    if kind == kinds.alloc:
        origin = None if origins is None else origins.of(op, scope, shape, dtype)
        return Alloc(block, size, stream, origin, pool)
    if kind == kinds.free:
        return Free(block)
    if kind == kinds.use:
        return Use(block, stream)
    return Synchronize() if kind == kinds.synchronize else EmptyCache()
