"""Writes out a series of like parts of which some were run: batches of an evaluation, tokens that are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    marks = [(index, event.phase) for index, event in enumerate(events) if isinstance(event, Mark)]
    for phase, group in groupby(marks, key=lambda mark: mark[1]):
        if phase is not series.phase:
            continue
        places = [index for index, _ in group]
        if len(places) != series.before + len(series.parts) + 1:
            raise UnlikePartsError(f"{len(places)} marks of {series.phase.value}")
        first = next(number for number, part in enumerate(series.parts) if part.alike)
        written += rename_all(events[done : places[series.before + first]], names)
        parts = _LikeParts.of(events, places[series.before :], series.parts)
        standing = [names.get(block, block) for block in parts.inherited]
        for number in range(series.parts[first].number, series.total + 1):
            made, standing, unused = parts.at(number, standing, unused)
            written += made
        names |= dict(zip(parts.template.left, standing, strict=True))
        done = places[-1]
    return [*written, *rename_all(events[done:], names)]


@dataclass(frozen=True, slots=True)
class _LikeParts:
    inherited: tuple[int, ...]
    """What the first of them finds."""
    template: Stretch
    """The last of them, and what it leaves."""
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
            Stretch(tuple(events[marks[at] : marks[at + 1]]), standing(marks[at]), standing(marks[at + 1]))
            for at in shown
        ]
        sized = [pattern_of(stretch) for stretch in stretches]
        template = stretches[-1]
        if any(stretch.pattern != sized[-1].pattern for stretch in sized):
            raise UnlikePartsError("parts take other blocks")
        numbers = [parts[at].number for at in shown]
        sizes = [_rule(numbers, column) for column in zip(*(stretch.sizes for stretch in sized), strict=True)]
        origins = zip(*(_shapes(stretch) for stretch in stretches), strict=True)
        shapes = [[_rule(numbers, dims) for dims in zip(*column, strict=True)] for column in origins]
        places = [index for index, event in enumerate(template.events) if isinstance(event, Alloc)]
        growing = {
            place: (size, shape)
            for place, size, shape in zip(places, sizes, shapes, strict=True)
            if not all(rule.is_constant for rule in (size, *shape))
        }
        return cls(stretches[0].inherited, template, growing)

    def at(self, number: int, standing: Sequence[int], unused: int) -> tuple[list[Event], list[int], int]:
        """The part of this number where these blocks stand; which stand after it, and the next unused block."""
        names = dict(zip(self.template.inherited, standing, strict=True))
        copied, born = copy_stretch(self.template.events, unused, names=names)
        for place, (size, shape) in self._growing.items():
            event = copied[place]
            assert isinstance(event, Alloc)
            origin = event.origin and replace(event.origin, shape=tuple(rule.at(number) for rule in shape))
            copied[place] = replace(event, requested_bytes=size.at(number), origin=origin)
        names |= born
        return copied, [names.get(block, block) for block in self.template.left], unused + len(born)


def _shapes(stretch: Stretch) -> list[tuple[int, ...]]:
    return [(event.origin or Origin()).shape for event in stretch.events if isinstance(event, Alloc)]


def _rule(numbers: Sequence[int], sizes: Sequence[int]) -> SizeRule:
    rule = rule_of(numbers, sizes)
    if rule is None:
        raise UnlikePartsError(f"sizes {', '.join(map(str, sizes))} follow no line or parabola")
    return rule
