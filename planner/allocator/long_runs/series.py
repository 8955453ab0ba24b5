"""Writes out a series of like parts of which some were run: batches of an evaluation, tokens that are generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from planner.allocator.long_runs.stretches import SizeRule, Stretch, alive_at, pattern_of, rule_of
from planner.events import Alloc, Event, Mark, Origin, Phase, copy_stretch, first_unused_block, rename_all
from planner.job.sampled_runs import Part


class UnlikePartsError(Exception):
    """The parts that were run do not tell what those between them do."""


@dataclass(frozen=True, slots=True)
class Series:
    """A phase of like parts: each begins with a mark, and a last mark ends them. `before` parts come first that are
    none of the series, `total` is the number of the last part."""

    phase: Phase
    parts: Sequence[Part]
    total: int
    before: int = 0


def write_out(events: Sequence[Event], series: Series) -> list[Event]:
    """The events with every part of the series, wherever it was run.

    Raises UnlikePartsError where a part takes other blocks than another, or sizes that follow no line or parabola.
    """
    written: list[Event] = []
    names: dict[int, int] = {}
    unused, done = first_unused_block(events), 0
    for marks in _groups(events, series.phase):
        if len(marks) != series.before + len(series.parts) + 1:
            raise UnlikePartsError(f"{len(marks)} marks of {series.phase.value}")
        first = next(number for number, part in enumerate(series.parts) if part.alike)
        begins, end = marks[series.before + first], marks[-1]
        written += rename_all(events[done:begins], names)
        part = _LikeParts.of(events, marks[series.before :], series.parts)
        standing = [names.get(each, each) for each in part.found]
        for number in range(series.parts[first].number, series.total + 1):
            made, standing, unused = part.at(number, standing, unused)
            written += made
        names |= dict(zip(part.left, standing, strict=True))
        done = end
    return [*written, *rename_all(events[done:], names)]


def _groups(events: Sequence[Event], phase: Phase) -> Iterator[list[int]]:
    """Marks of a phase that no mark of another parts."""
    marks = [(index, event.phase) for index, event in enumerate(events) if isinstance(event, Mark)]
    for found, group in groupby(marks, key=lambda each: each[1]):
        if found is phase:
            yield [index for index, _ in group]


@dataclass(frozen=True, slots=True)
class _LikeParts:
    found: tuple[int, ...]
    """What the first of them finds."""
    left: tuple[int, ...]
    """What the last of them leaves."""
    _template: Stretch
    _growing: Mapping[int, tuple[SizeRule, Sequence[SizeRule]]]
    """By the place of an allocation among the events its size and its shape, where they hinge on the number."""

    @classmethod
    def of(cls, events: Sequence[Event], marks: Sequence[int], parts: Sequence[Part]) -> _LikeParts:
        alive = alive_at(events, marks)
        shown = [index for index, part in enumerate(parts) if part.alike]
        staying = alive[marks[shown[0]]].keys() & alive[marks[-1]].keys()

        def standing(mark: int) -> tuple[int, ...]:
            return tuple(block for block in alive[mark] if block not in staying)

        stretches = [
            Stretch(tuple(events[marks[each] : marks[each + 1]]), standing(marks[each]), standing(marks[each + 1]))
            for each in shown
        ]
        sized = [pattern_of(each) for each in stretches]
        if any(each.pattern != sized[-1].pattern for each in sized):
            raise UnlikePartsError("parts take other blocks")
        numbers = [parts[each].number for each in shown]
        sizes = [_rule(numbers, column) for column in zip(*(each.sizes for each in sized), strict=True)]
        origins = zip(*(_origins(each) for each in stretches), strict=True)
        shapes = [[_rule(numbers, dims) for dims in zip(*column, strict=True)] for column in origins]
        template = stretches[-1]
        places = [index for index, event in enumerate(template.events) if isinstance(event, Alloc)]
        growing = {
            place: (size, shape)
            for place, size, shape in zip(places, sizes, shapes, strict=True)
            if not all(each.is_constant for each in (size, *shape))
        }
        return cls(stretches[0].found, template.left, template, growing)

    def at(self, number: int, standing: Sequence[int], unused: int) -> tuple[list[Event], list[int], int]:
        """The part of this number where these blocks stand; which stand after it, and the next unused block."""
        names = dict(zip(self._template.found, standing, strict=True))
        copied, born = copy_stretch(self._template.events, unused, names=names)
        for place, (size, shape) in self._growing.items():
            event = copied[place]
            assert isinstance(event, Alloc)
            copied[place] = _resized(event, size.at(number), [each.at(number) for each in shape])
        every = {**names, **born}
        return copied, [every.get(each, each) for each in self._template.left], unused + len(born)


def _resized(event: Alloc, requested_bytes: int, shape: Sequence[int]) -> Alloc:
    origin = event.origin
    if origin is not None:
        origin = replace(origin, shape=tuple(shape))
    return replace(event, requested_bytes=requested_bytes, origin=origin)


def _origins(stretch: Stretch) -> list[tuple[int, ...]]:
    return [(event.origin or Origin()).shape for event in stretch.events if isinstance(event, Alloc)]


def _rule(numbers: Sequence[int], sizes: Sequence[int]) -> SizeRule:
    found = rule_of(numbers, sizes)
    if found is None:
        raise UnlikePartsError(f"sizes {', '.join(map(str, sizes))} follow no line or parabola")
    return found
