"""Sizes of batches and of inputs: whether they vary, and which batches of an epoch are the ones to run."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

LARGEST = "largest batch"
_OTHER = "other batch"
FEW = 6
"""Sizes of which each is run, where there are no more: between so few nothing is interpolated."""
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""By entry of a batch, or by argument of a forward."""

_SHARES = {"median batch": 0.5, "99 % batch": 0.99}
"""Batches of which so many are at most as large."""
_MOST_NEAR = 8
"""Batches of other sizes that are kept around each of them, as it lies among those seen so far."""
_MOST_LARGEST = 4
"""Batches that are each the largest in another way: of tensors of their own, and of dims of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingSize:
    """A tensor that is not always of one shape: `different` shapes were seen."""

    name: str
    smallest: Shape
    largest: Shape
    different: int
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedBatch:
    """A batch that the program was given before its turn. `as_large` of all that were drawn have at least its size."""

    name: str
    shape: Shape
    as_large: int
    iteration: int = 0
    """In which it was used; 0: it was not."""
    evaluates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBatches:
    """What a data loader gives: `drawn` batches of the `epoch`, whose number is 0 where that is not known."""

    size: VaryingSize
    drawn: int
    epoch: int
    tried: tuple[TriedBatch, ...] = ()
    trains: bool = False
    """Whether gradients were made where it was gone through."""
    order: tuple[tuple[int, ...], ...] = ()
    """The extents that vary (`varying_extents`) of the batches that were drawn, in their order."""
    given: tuple[tuple[int, ...], ...] = ()
    """The same of those that the program was given until it was ended."""


def varying(steps: Sequence[Sequence[Shapes]], place: str = "") -> VaryingSize | None:
    """The largest tensor that is not of the same sizes in every step, by what was seen in each; None if there is none.
    The first step and the last may have been seen in part. Of one step alone it is not known whether its sizes come
    again."""
    found = []
    for name in dict.fromkeys(name for step in steps for shapes in step for name in shapes):
        seen = [shapes for step in steps if (shapes := [each[name] for each in step if name in each])]
        every = dict.fromkeys(chain(*seen))
        uncut = _uncut(every)
        if not _repeats([{uncut[shape] for shape in shapes} for shapes in seen]):
            smallest, largest = min(every, key=math.prod), max(every, key=math.prod)
            found.append(VaryingSize(name=name, smallest=smallest, largest=largest, different=len(every), place=place))
    return max(found, key=lambda size: math.prod(size.largest), default=None)


def varying_extents(batches: Sequence[Shapes]) -> list[tuple[str, int]]:
    """The entries and dims that are not the same in all batches; of several that are always alike, the first."""
    ways = dict.fromkeys((name, dim) for batch in batches for name, shape in batch.items() for dim in range(len(shape)))
    columns = {tuple(_extent(batch, *way) for batch in batches): way for way in reversed(ways)}
    return [way for column, way in reversed(columns.items()) if len(set(column)) > 1]


def read_extents(batch: Shapes, ways: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(_extent(batch, *way) for way in ways)


def _repeats(steps: Sequence[set[Shape]]) -> bool:
    whole = max(steps, key=len)
    is_same = all(step == whole for step in steps[1:-1]) and steps[0] <= whole and steps[-1] <= whole
    return is_same and (len(whole) == 1 or steps.count(whole) > 1)


def _uncut(shapes: Iterable[Shape]) -> dict[Shape, Shape]:
    """By each shape the one that stands for it: a last batch with fewer examples than all others is no other size."""
    others: defaultdict[Shape, list[Shape]] = defaultdict(list)
    for shape in shapes:
        others[shape[1:]].append(shape)
    return {
        shape: each[0] if len(each) == 2 and each[1] < each[0] else shape for each in others.values() for shape in each
    }


@dataclass(slots=True)
class LargestBatches:
    """Takes the batches of an epoch one after the other, and keeps the few that stand for all."""

    seen: list[dict[str, Shape]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    """Of all that were seen, ascending."""
    _near: dict[str, list[tuple[int, int, Any]]] = field(default_factory=lambda: {name: [] for name in _SHARES})
    """Around each share: a batch's size, its number, and the batch."""
    _largest: dict[tuple[str, int], tuple[int, int, int, Any]] = field(default_factory=dict)
    """By entry and dim (-1: all elements) the largest extent, the batch's size, its number, and the batch."""
    _of_few: dict[int, tuple[int, Any]] = field(default_factory=dict)
    """By size the first batch of it, with its number; of no more sizes than show that there are not few."""

    def take(self, shapes: dict[str, Shape], batch: Any) -> None:
        number = len(self.seen)
        self.seen.append(shapes)
        size = _measure_size(shapes)
        insort(self._sizes, size)
        if len(self._of_few) <= FEW:
            self._of_few.setdefault(size, (number, batch))
        for name, near in self._near.items():
            if size not in (each for each, *_ in near):
                near.append((size, number, batch))
                near.sort(key=lambda each: self._distance(each[0], _SHARES[name]))
                del near[_MOST_NEAR:]
        for name, shape in shapes.items():
            for dim, extent in enumerate((math.prod(shape), *shape), -1):
                extents = (extent, size)
                if extents > self._largest.get((name, dim), (-1, -1))[:2]:
                    self._largest[name, dim] = (*extents, number, batch)

    def chosen(self, size: VaryingSize) -> list[tuple[TriedBatch, Any]]:
        """Batches to run, as they grow: one of the median, one of the 99 %, those that are largest in any way, and of
        few sizes one of each."""
        kept: dict[int, tuple[str, Any]] = {}
        for name, share in _SHARES.items():
            usual, number, batch = min(self._near[name], key=lambda each: self._distance(each[0], share))
            if usual < self._sizes[-1]:
                kept.setdefault(number, (name, batch))
        varied = [
            (name, dim) for name, dim in self._largest if len({_extent(each, name, dim) for each in self.seen}) > 1
        ]
        # All elements of the largest tensors come first: of ways beyond the most that are tried, dims are left out.
        varied.sort(key=lambda way: (way[1] >= 0, -math.prod(self._largest_shape(way[0]))))
        largest = {self._largest[way][2]: self._largest[way][3] for way in varied}
        for number, batch in list(largest.items())[:_MOST_LARGEST]:
            kept[number] = (LARGEST, batch)
        known = {_measure_size(self.seen[number]) for number in kept}
        if len(self._of_few) <= FEW:
            kept |= {number: (_OTHER, each) for of, (number, each) in self._of_few.items() if of not in known}
        tried = [
            (
                TriedBatch(
                    name=name,
                    shape=self.seen[number].get(size.name, ()),
                    as_large=len(self._sizes) - bisect_left(self._sizes, _measure_size(self.seen[number])),
                ),
                batch,
            )
            for number, (name, batch) in kept.items()
        ]
        return sorted(tried, key=lambda pair: (pair[0].name == LARGEST, -pair[0].as_large))

    def _distance(self, size: int, share: float) -> int:
        """How many batches lie between one of this size and the share."""
        place = math.ceil(share * len(self._sizes)) - 1
        first, end = bisect_left(self._sizes, size), bisect_right(self._sizes, size)
        return max(first - place, place - end + 1, 0)

    def _largest_shape(self, name: str) -> Shape:
        return max((shapes[name] for shapes in self.seen if name in shapes), key=math.prod)


def _extent(shapes: Shapes, name: str, dim: int) -> int:
    shape = shapes.get(name, ())
    return math.prod(shape) if dim < 0 else shape[dim] if dim < len(shape) else 0


def _measure_size(shapes: Shapes) -> int:
    """The elements of the largest tensor."""
    return max(map(math.prod, shapes.values()), default=0)
