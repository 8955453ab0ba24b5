"""Candidates that wait for their plan: which of them is planned next.

The order decides how soon something is found, never what is found in the end: a candidate leaves only by a plan, or
when enough others are better than it can be.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Sequence

from planner.searching.weighing import Weighed

_USUAL_RATIO = 1.25
"""Of the bytes of a plan to those of its bound, before any plan is made."""
_LATEST = 9
"""Plans that the ratio is the median of."""

_ALIKE = 200
"""Groups of the best rank of which the most usual, and of those the quickest, is planned first: the roofline tells the
best few hundred of thousands no further apart than it is wrong by."""

Rank = tuple[float, int]
_Entry = tuple[Rank, list[Weighed]]


class Waiting:
    """Groups of candidates with one trace each, those that are likely to fit before the others."""

    def __init__(self, groups: Sequence[list[Weighed]]) -> None:
        """A group is sorted by rank."""
        self._entries: list[_Entry] = [(group[0].rank, group) for group in groups]
        self._ratios: deque[float] = deque([_USUAL_RATIO], maxlen=_LATEST)
        self._is_anything_found = False
        self._sort()

    @property
    def count(self) -> int:
        return len(self._likely) + len(self._doubtful)

    def take(self, last: Rank, enough: bool) -> list[Weighed]:
        """The group to plan next; none where nothing that waits ranks before `last`. `enough`: as many were found as
        are wanted, so that only what could displace them counts."""
        for heap in (self._likely, self._doubtful):
            if heap and (not enough or heap[0][0] < last):
                return self._next(heap, last if enough else None)
        return []

    def _next(self, heap: list[_Entry], last: Rank | None) -> list[Weighed]:
        """Of the best the most usual, and of those the quickest; before anything is found of all of them: that is an
        answer soon, and one that somebody asked for."""
        alike = heap if not self._is_anything_found else heapq.nsmallest(_ALIKE, heap)
        entry = min(
            (each for each in alike if last is None or each[0] < last),
            key=lambda each: (each[1][0].unusual, each[1][0].effort, each[0]),
        )
        heap.remove(entry)
        heapq.heapify(heap)
        return entry[1]

    def found(self) -> None:
        """Something fits: from now on rank comes first."""
        self._is_anything_found = True

    def learn(self, least_bytes: int, planned_bytes: int) -> None:
        """What a plan said, beside its bound."""
        self._ratios.append(planned_bytes / max(least_bytes, 1))
        self._entries = [*self._likely, *self._doubtful]
        self._sort()

    def better_than(self, last: Rank) -> int:
        """Candidates that rank before `last`."""
        return sum(each.rank < last for heap in (self._likely, self._doubtful) for _, group in heap for each in group)

    def _sort(self) -> None:
        ratio = statistics.median(self._ratios)
        self._likely = [each for each in self._entries if _fits(each[1], ratio)]
        self._doubtful = [each for each in self._entries if not _fits(each[1], ratio)]
        heapq.heapify(self._likely)
        heapq.heapify(self._doubtful)


def _fits(group: Sequence[Weighed], ratio: float) -> bool:
    return any(each.least_bytes * ratio <= each.capacity_bytes for each in group)
