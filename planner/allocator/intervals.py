"""Addresses as intervals: what a set of them costs does not grow with their size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Intervals:
    """Addresses, as stretches from a start to before an end, ascending and apart from each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Each start with its end."""
        return tuple(zip(self._starts, self._ends, strict=True))

    def add(self, start: int, end: int) -> None:
        """Takes in the addresses from `start` to before `end`."""
        if start >= end:
            return
        first, after = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < after:
            start, end = min(start, self._starts[first]), max(end, self._ends[after - 1])
        self._starts[first:after], self._ends[first:after] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Leaves out the addresses from `start` to before `end`."""
        if start >= end:
            return
        first, after = bisect_right(self._ends, start), bisect_left(self._starts, end)
        touched = zip(self._starts[first:after], self._ends[first:after], strict=True)
        pieces = (piece for one, other in touched for piece in ((one, min(other, start)), (max(one, end), other)))
        rest = [(one, other) for one, other in pieces if one < other]
        self._starts[first:after], self._ends[first:after] = [one for one, _ in rest], [other for _, other in rest]
