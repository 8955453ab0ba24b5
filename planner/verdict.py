"""Whether something fits into the memory there is: the one rule for ranks, shared GPUs and nodes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a rank fits into its GPU; from best to worst."""

    FITS = "fits"
    TIGHT = "tight"
    EXCEEDS = "exceeds"


def decide(*, runs_out: bool, highest_bytes: int, capacity_bytes: int, cache_releases: int = 0) -> Verdict:
    """The verdict on what `runs_out` of memory or not, when it gets no more than there is.

    It is tight if it fits only after the allocator has given its cache back, or if `highest_bytes`, the upper end of
    the interval, does not fit. The reserved bytes of a replay without a limit decide nothing: they are elastic.
    """
    if runs_out:
        return Verdict.EXCEEDS
    return Verdict.TIGHT if cache_releases or highest_bytes > capacity_bytes else Verdict.FITS


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """A job runs only if all of it does; nothing fits best."""
    return max(verdicts, key=list(Verdict).index, default=Verdict.FITS)
