"""By how much plans of the same jobs differ between versions of torch: measured over twenty of the examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

PEAKS = Path(__file__).with_name("version_peaks.json")
"""By version and example the peaks of allocated and reserved bytes of its fullest ranks, or why it is not planned;
written by `make torch-versions`."""

Peaks = Mapping[str, tuple[int, int] | str]


def read_peaks() -> Mapping[str, Peaks]:
    """By version (`2.13`), then by example."""
    content: dict[str, dict[str, list[int] | str]] = json.loads(PEAKS.read_text()) if PEAKS.exists() else {}
    return {
        version: {name: found if isinstance(found, str) else (found[0], found[1]) for name, found in examples.items()}
        for version, examples in content.items()
    }


def sort_versions(versions: Iterable[str]) -> list[str]:
    """From the oldest to the newest."""
    return sorted(versions, key=lambda version: tuple(map(int, version.split("."))))


@cache
def largest_difference(one: str, other: str) -> float:
    """The largest relative difference of reserved peaks over the examples that both versions (`2.9`) plan.

    Of a version without measurements nothing is known but this: it is the largest between any two.
    """
    known = read_peaks()
    if one == other:
        return 0.0
    pairs = [(one, other)] if one in known and other in known else combinations(known, 2)
    return max((_difference(known[a], known[b]) for a, b in pairs), default=0.0)


def _difference(one: Peaks, other: Peaks) -> float:
    reserved = [
        (mine[1], theirs[1])
        for name in one.keys() & other.keys()
        if not isinstance(mine := one[name], str) and not isinstance(theirs := other[name], str)
    ]
    return max((abs(mine - theirs) / min(mine, theirs) for mine, theirs in reserved), default=0.0)
