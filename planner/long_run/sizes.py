"""How the sizes of a stretch's blocks follow from a length: a line or a parabola that every traced length confirms."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from planner.long_run.patterns import Sized

_PADDINGS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Kernels pad lengths to multiples of these (torch 2.13: memory-efficient attention to 32, flash attention to 128)."""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """Bytes by length: `constant + linear * x + square * x * x`, x being the length padded to a multiple."""

    padding: int
    constant: Fraction
    linear: Fraction
    square: Fraction

    @property
    def is_constant(self) -> bool:
        """The same at every length."""
        return not (self.linear or self.square)

    def at(self, length: int) -> int:
        """Bytes at this length; a broken number of them, which no traced length has, is rounded up."""
        x = -(-length // self.padding) * self.padding
        return math.ceil(self.constant + x * (self.linear + x * self.square))


@dataclass(frozen=True, slots=True)
class Between:
    """Bytes on straight lines between the traced lengths, or, where those do not lie on such lines, the bytes of the
    next longer one."""

    lengths: Sequence[int]
    sizes: Sequence[int]
    straight: bool

    def at(self, length: int) -> int:
        """Bytes at this length, no shorter than the shortest traced one, and no longer than the longest."""
        after = bisect_left(self.lengths, length)
        if not self.straight or self.lengths[after] == length:
            return self.sizes[after]
        return math.ceil(_on_line(self.lengths, self.sizes, after - 1, after, length))


_NEARLY = Fraction(1, 1000)
"""How far a size may be from the line between its neighbours: kernels that work in pieces round their number up."""


def between(lengths: Sequence[int], sizes: Sequence[int]) -> Between:
    """Sizes that no rule tells. They are taken to be straight between if every traced one but the outermost is nearly
    on the line between its neighbours."""
    inner = range(1, len(lengths) - 1)
    straight = len(lengths) >= _FEWEST_STRAIGHT and all(
        abs(_on_line(lengths, sizes, each - 1, each + 1, lengths[each]) - sizes[each]) <= _NEARLY * sizes[each]
        for each in inner
    )
    return Between(lengths, sizes, straight)


_FEWEST_STRAIGHT = 4


def _on_line(lengths: Sequence[int], sizes: Sequence[int], first: int, last: int, length: int) -> Fraction:
    slope = Fraction(sizes[last] - sizes[first], lengths[last] - lengths[first])
    return sizes[first] + slope * (length - lengths[first])


def rule_of(lengths: Sequence[int], sizes: Sequence[int]) -> SizeRule | None:
    """The rule for these sizes at these lengths, which ascend; None where none is confirmed by a length that it was not
    made of."""
    if len(set(sizes)) == 1 and len(lengths) > 1:
        return SizeRule(1, Fraction(sizes[0]), Fraction(0), Fraction(0))
    for degree in (1, 2):
        for padding in _PADDINGS:
            points = {-(-length // padding) * padding: size for length, size in zip(lengths, sizes, strict=True)}
            if len(points) < degree + 2:
                break  # a coarser one has fewer
            rule = _through(list(points.items()), degree, padding)
            if all(rule.at(length) == size for length, size in zip(lengths, sizes, strict=True)):
                return rule
    return None


def _through(points: Sequence[tuple[int, int]], degree: int, padding: int) -> SizeRule:
    """The line through the outermost points, or the parabola through them and the one in the middle."""
    (x0, y0), (x1, y1), (x2, y2) = points[0], points[-1], points[len(points) // 2]
    slope = Fraction(y1 - y0, x1 - x0)
    if degree == 1:
        return SizeRule(padding, y0 - slope * x0, slope, Fraction(0))
    square = (Fraction(y2 - y0, x2 - x0) - slope) / (x2 - x1)
    linear = slope - square * (x0 + x1)
    return SizeRule(padding, y0 - x0 * (linear + square * x0), linear, square)


@dataclass(slots=True)
class ByLength:
    """A stretch at any length: as it was traced, with sizes that follow from the traced ones, or else as the next
    longer traced one.

    Sizes follow from `ruled_from` tokens on, where all traced lengths do the same with blocks of other sizes.
    """

    traced: Mapping[int, Sized]
    ruled_from: int = 0
    inexact: Counter[str] = field(default_factory=Counter)
    """Of the sizes that no rule tells how many are `straight` between the traced ones, and how many are those of the
    `next` longer one."""
    _rules: Sequence[SizeRule | Between] = ()
    _made: dict[int, Sized] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = dict(self.traced)
        lengths = sorted(self.traced)
        longest = self.traced[lengths[-1]].pattern
        other = next((each for each in reversed(lengths) if self.traced[each].pattern != longest), 0)
        alike = [each for each in lengths if each > other]
        self.ruled_from = alike[0]
        columns = zip(*(self.traced[each].sizes for each in alike), strict=True)
        self._rules = [rule_of(alike, column) or between(alike, column) for column in columns]
        loose = [each for each in self._rules if isinstance(each, Between)]
        self.inexact = Counter("straight" if each.straight else "next" for each in loose)

    def at(self, length: int) -> Sized:
        """The stretch at this length, no longer than the longest that was traced."""
        known = self._made.get(length)
        if known is None:
            known = self._made[length] = self._make(length)
        return known

    def _make(self, length: int) -> Sized:
        if length < self.ruled_from:
            return self.traced[min(each for each in self.traced if each >= length)]
        return Sized(self.traced[max(self.traced)].pattern, [rule.at(length) for rule in self._rules])
