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

_BEST = 100
"""Groups of which the quickest is planned first."""

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
        if not self._is_anything_found and self._likely:
            return self._quickest()
        for heap in (self._likely, self._doubtful):
            if heap and (not enough or heap[0][0] < last):
                return heapq.heappop(heap)[1]
        return []

    def found(self) -> None:
        """Something fits: from now on rank alone decides."""
        self._is_anything_found = True

    def _quickest(self) -> list[Weighed]:
        """Of the best, the one with the fewest rank classes to trace: that is an answer soon."""
        entry = min(heapq.nsmallest(_BEST, self._likely), key=lambda each: (each[1][0].rank_classes, each[0]))
        self._likely.remove(entry)
        heapq.heapify(self._likely)
        return entry[1]

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
