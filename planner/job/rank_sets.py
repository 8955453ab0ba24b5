"""Sets of ranks as spans, however many ranks there are."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks as spans (first, last), ascending and with a gap between them; written `0-7,16`."""

    spans: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        before = -2
        for first, last in self.spans:
            if first < before + 2 or last < first:
                raise ValueError(f"no spans in order with gaps between them: {self.spans}")
            before = last

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> RankSet:
        """The union of spans that come in any order and may overlap."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(spans):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def world(cls, size: int) -> RankSet:
        """All ranks of a world."""
        return cls(((0, size - 1),) if size else ())

    @classmethod
    def parse(cls, text: str) -> RankSet:
        """The set that was written as text; ValueError if the text is none."""
        if not text:
            return cls()
        spans = []
        for part in text.split(","):
            match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part)
            if match is None:
                raise ValueError(f"{text!r} is not a set of ranks such as 0-7,16")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise ValueError(f"{part!r} goes backwards")
            spans.append((first, last))
        return cls.of(spans)

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self.spans)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.spans)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.spans:
            yield from range(first, last + 1)

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int):
            return False
        index = bisect.bisect_right(self.spans, rank, key=lambda span: span[0]) - 1
        return index >= 0 and rank <= self.spans[index][1]
