"""What the native library wrote: a tensor's block, records as events, stretches that repeat."""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from planner.events import Alloc, EmptyCache, Event, Free, Mark, Origin, Role, Use
from planner.paper import library

ALLOC, FREE, USE, _EMPTY_CACHE = range(4)
"""Kinds of records, as native/trace.h numbers them."""
RECORD = struct.Struct("=iiiiqqqii")
_MEMBERS = "kind", "op", "scope", "stream", "block", "bytes", "shape", "dtype", "pool"
"""Of `Record` in native/trace.h."""


class DoesNotFoldError(Exception):
    """Parts of a step that were run do not say what those do that were left out: all of them have to be run."""


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor the part on this rank, of one inside torch.func's transforms what it wraps; any other itself."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Those that have the memory behind a tensor: its local part, of a wrapper subclass (quantized ones, a collective
    that is waited for later) all that it flattens to."""
    local = local_part(tensor)
    if type(local) in _PLAIN or not is_traceable_wrapper_subclass(local):
        return [local]
    names, _ = local.__tensor_flatten__()
    return [part for name in names for part in inner_tensors(getattr(local, name))]


def blocks_of(tensor: torch.Tensor) -> list[int]:
    """The blocks behind a tensor on the paper GPU; none for one that has none, as a sparse one."""
    return [block for part in inner_tensors(tensor) if (block := _block_of_part(part)) >= 0]


def block_of(tensor: torch.Tensor) -> int | None:
    """The first of :func:`blocks_of`: the only one, but for wrappers."""
    return next(iter(blocks_of(tensor)), None)


def _block_of_part(part: torch.Tensor) -> int:
    if part.device.type != "cuda" or not torch._C._has_storage(part):
        return -1
    try:
        address = part.untyped_storage().data_ptr()
    except RuntimeError:  # of a wrapper that does not say what it wraps
        return -1
    return int(library.load().paper_block_at(address))


def operator_of(tensor: torch.Tensor) -> str:
    """The operator that made the storage of a tensor (`aten.ne`); empty for one that has none here."""
    block, native = block_of(tensor), library.load()
    index = -1 if block is None else native.paper_operator_of(block)
    return "" if index < 0 else native.paper_name(index).decode().replace("::", ".")


def operators_at_work() -> list[str]:
    """The operators that run on this thread, those that were called first first (`aten.normal`)."""
    names: bytes = library.load().paper_operators_at_work()
    return names.decode().replace("::", ".").split()


class Origins:
    """One Origin for all blocks that come from the same place."""

    def __init__(self, native: ctypes.CDLL, paths: Sequence[str]) -> None:
        self._ops = [native.paper_name(i).decode().replace("::", ".") for i in range(native.paper_name_count())]
        self._paths = paths
        count = native.paper_shape_count()
        self._shapes = (ctypes.c_int64 * count).from_address(native.paper_shapes()) if count else []
        self._known: dict[tuple[int, int, tuple[int, ...], int], Origin] = {}

    def of(self, op: int, scope: int, shape_index: int, dtype: int) -> Origin:
        shape: tuple[int, ...] = ()
        if shape_index >= 0:
            dims = self._shapes[shape_index]
            shape = tuple(self._shapes[shape_index + 1 : shape_index + 1 + dims])
        key = (op, scope, shape, dtype)
        if key not in self._known:
            self._known[key] = Origin(self._ops[op], self._paths[scope], shape, dtype_name(dtype))
        return self._known[key]


def dtype_name(number: int) -> str:
    """The dtype that torch numbers so (c10::ScalarType); empty for none."""
    return _dtype_names().get(number, "")


@cache
def dtype_number(dtype: torch.dtype) -> int:
    """How torch numbers a dtype (c10::ScalarType)."""
    return int(torch.ops.paper.dtype_number(dtype))


@cache
def _dtype_names() -> dict[int, str]:
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {dtype_number(dtype): str(dtype).removeprefix("torch.") for dtype in dtypes}


def renumber(placed: Mark | Role, numbers: Mapping[int, int]) -> Mark | Role:
    if isinstance(placed, Role):
        return Role(numbers[placed.block], placed.category, placed.name)
    return placed


def make_event(record: tuple[int, ...], origins: Origins | None, numbers: Mapping[int, int] | None) -> Event:
    kind, op, scope, stream, block, size, shape, dtype, pool = record
    if numbers is not None and kind in (ALLOC, FREE, USE):
        block = numbers[block]
    if kind == ALLOC:
        origin = None if origins is None else origins.of(op, scope, shape, dtype)
        return Alloc(block, size, stream, origin, pool)
    if kind == FREE:
        return Free(block)
    return Use(block, stream) if kind == USE else EmptyCache()


_MOST_STRETCHES = 1024
"""Of which one repetition consists."""
_MOST_TRIED = 24
"""Lengths that are tried from one cut."""
_NEVER = np.iinfo(np.int64).max
_STRUCT_CODES = {"i": "i4", "q": "i8"}


@dataclass(frozen=True, slots=True)
class Fold:
    """Records `first` to before `after` are repeated by those up to `end`, `times` times."""

    first: int
    after: int
    end: int
    times: int
    heirs: tuple[tuple[int, int], ...]
    """(found, left), as in planner.events.Repeat, by the device's numbers of blocks."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What is between `first` and `middle`, and again between that and `end`, would happen `times` more times."""

    first: int
    middle: int
    end: int
    times: int


class Records:
    """Native records as columns, and what follows for each block."""

    def __init__(self, content: bytes, waits: Sequence[int]) -> None:
        """`waits`: positions at which the host waits for the GPU, in order."""
        codes = RECORD.format.lstrip("=")
        table = np.frombuffer(content, dtype=list(zip(_MEMBERS, map(_STRUCT_CODES.get, codes), strict=True)))
        self.count = len(table)
        self._waits = waits
        self._compared = np.stack([table[name].astype(np.int64) for name in ("kind", "stream", "bytes", "pool")])
        """What two stretches have to have in common, record by record."""
        self._kind = self._compared[0]
        allocs = self._kind == ALLOC
        self.blocks = table["block"][allocs].astype(np.int64)
        """By the number of an allocation: the device's number of its block."""
        self._born_before = np.concatenate(([0], np.cumsum(allocs)))
        order = np.argsort(self.blocks, kind="stable")
        at = np.searchsorted(self.blocks, table["block"], sorter=order)
        named = np.isin(self._kind, (ALLOC, FREE, USE))
        self._number = np.full(self.count, -1, dtype=np.int64)
        """For each record the number of the allocation that it names; -1 for those that name none."""
        self._number[named] = order[at[named]]
        self._deaths = self._find_deaths()

    def births_before(self, position: int) -> int:
        """How many allocations there were before a position."""
        return int(self._born_before[position])

    def find_alive(self, position: int) -> Any:
        """Numbers of the allocations that are alive before a position."""
        return np.flatnonzero(self._deaths[: self.births_before(position)] >= position)

    def signature(self, first: int, after: int) -> bytes:
        """The same for stretches that could be the same."""
        return blake2b(self._compared[:, first:after].tobytes(), digest_size=16).digest()

    def older(self, first: int, length: int) -> Any | None:
        """Which of these records name a block that is older than they and those before them: the same in the following
        stretch of this length. None if that one does not do the same."""
        here, there = slice(first, first + length), slice(first + length, first + 2 * length)
        if not np.array_equal(self._compared[:, here], self._compared[:, there]):
            return None
        if self._find_waits(first, length) != self._find_waits(first + length, length):
            return None
        number, later = self._number[here], self._number[there]
        shift = self.births_before(first + length) - self.births_before(first)
        moved = later - number == shift
        same = (later == number) & ~moved
        if np.all(moved | same) or self._same_but_for_order(number, later, shift, self._kind[here]):
            return same
        return None

    def heirs(self, first: int, after: int, older: Any) -> tuple[tuple[int, int], ...] | None:
        """By numbers of allocations: what the stretch finds and frees, with what takes its place; None if it leaves
        more or less than it finds."""
        begun, ended = set(self.find_alive(first).tolist()), set(self.find_alive(after).tolist())
        shift = self.births_before(after) - self.births_before(first)
        pairs: list[tuple[int, int]] = []
        reached = set()
        for block in sorted(begun - ended):
            while block in begun:
                if block + shift not in ended:
                    return None
                pairs.append((block, block + shift))
                block += shift
            reached.add(block)
        if reached != ended - begun:
            return None
        moving = {given_up for given_up, _ in pairs}
        number = self._number[first:after]
        if moving & set(number[older].tolist()):
            return None
        outside = number[~older & (number >= 0) & (number < self.births_before(first))]
        return tuple(pairs) if set(outside.tolist()) <= moving else None

    def stand_ins(self, fold: Fold) -> Iterator[tuple[int, int]]:
        """Each block that is alive after the repetitions with the one of the first that stands for it, by the device's
        numbers."""
        began, born = self.births_before(fold.first), self.births_before(fold.after) - self.births_before(fold.first)
        if not born:
            return
        later = np.arange(began + born, self.births_before(fold.end))
        for number in later[self._deaths[later] >= fold.end].tolist():
            yield int(self.blocks[number]), int(self.blocks[began + (number - began) % born])
        # What is alive at the end is called as what the first had left.
        lasting = np.flatnonzero(np.isin(self.blocks, [left for _, left in fold.heirs])).tolist()
        for number in lasting:
            yield int(self.blocks[number + fold.times * born]), int(self.blocks[number])

    def _find_deaths(self) -> Any:
        """By the number of an allocation: where it is freed."""
        deaths = np.full(len(self.blocks), _NEVER, dtype=np.int64)
        frees = np.flatnonzero(self._kind == FREE)
        deaths[self._number[frees]] = frees
        return deaths

    def _find_waits(self, first: int, length: int) -> list[int]:
        begin, end = (bisect_left(self._waits, position) for position in (first, first + length))
        return [position - first for position in self._waits[begin:end]]

    def _same_but_for_order(self, number: Any, later: Any, shift: int, kind: Any) -> bool:
        """Whether only blocks that are freed one directly after the other come in another order: it is that of the
        threads of a process."""
        freed = kind == FREE
        run = np.cumsum(~freed)
        one, other = number[freed] + shift, later[freed]
        rest = ~freed & (number >= 0)
        alike = (later[rest] - number[rest] == shift) | (later[rest] == number[rest])
        if not np.all(alike):
            return False
        return bool(np.array_equal(one[np.lexsort((one, run[freed]))], other[np.lexsort((other, run[freed]))]))


def fold_left_out(records: Records, left_out: Sequence[LeftOut]) -> list[Fold]:
    """Stretches that stand for what was left out. Raises DoesNotFoldError for two that do not do the same."""
    folds: list[Fold] = []
    for stretches in left_out:
        ends = [stretches.first, stretches.middle, stretches.end]
        fold = _fold(records, ends, [records.signature(first, after) for first, after in pairwise(ends)], 0, 1)
        if fold is None:
            raise DoesNotFoldError("micro-batches are not alike")
        folds.append(replace(fold, times=fold.times + stretches.times))
    return folds


def find_folds(records: Records, cuts: Sequence[int]) -> list[Fold]:
    """Stretches between cuts that repeat, in order, without overlap."""
    ends = sorted({cut for cut in cuts if 0 < cut < records.count} | {0, records.count})
    signatures = [records.signature(first, after) for first, after in pairwise(ends)]
    where: defaultdict[bytes, list[int]] = defaultdict(list)
    for index, signature in enumerate(signatures):
        where[signature].append(index)
    folds, at = [], 0
    while at < len(signatures):
        # The repetition from this stretch on that covers most; `covered` stretches are done with, at least one.
        best, covered = None, 1
        lengths = (index - at for index in where[signatures[at]] if index > at)
        for stretches in islice(lengths, _MOST_TRIED):
            if stretches > _MOST_STRETCHES or at + 2 * stretches > len(signatures):
                break
            fold = _fold(records, ends, signatures, at, stretches)
            if fold is not None and stretches * (1 + fold.times) > covered:
                best, covered = fold, stretches * (1 + fold.times)
        if best is not None:
            folds.append(best)
        at += covered
    return folds


def _fold(records: Records, ends: Sequence[int], signatures: Sequence[bytes], at: int, stretches: int) -> Fold | None:
    """So many stretches from this one on, if those that follow repeat them."""
    first, after = ends[at], ends[at + stretches]
    length, times = after - first, 0
    older: Any = None
    while True:
        middle, end = at + (times + 1) * stretches, at + (times + 2) * stretches
        if end > len(signatures) or signatures[middle - stretches : middle] != signatures[middle:end]:
            break
        same = records.older(first + times * length, length)
        if same is None or (older is not None and not np.array_equal(same, older)):
            break
        older, times = same, times + 1
    if not times or not length:
        return None
    heirs = records.heirs(first, after, older)
    if heirs is None:
        return None
    blocks = records.blocks
    named = tuple((int(blocks[given_up]), int(blocks[left])) for given_up, left in heirs)
    return Fold(first, after, first + (1 + times) * length, times, named)
