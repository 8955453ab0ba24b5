"""Whether a rank fits: from a replay that was held to its capacity, and from the interval of its device bytes."""

from __future__ import annotations

from planner.allocator.timeline import Timeline
from planner.report.statement import Verdict


def decide(capped: Timeline, interval_bytes: tuple[int, int], capacity_bytes: int) -> Verdict:
    """The verdict of one rank.

    `capped` is the replay that may reserve no more than capacity less what lives outside the allocator. It exceeds
    if that replay ran out of memory even after it had given its cache back. It is tight if it fits only after such
    cache releases, or if the interval's upper end does not fit. The reserved bytes of a replay without a limit
    decide nothing: they are elastic.
    """
    if capped.out_of_memory is not None:
        return Verdict.EXCEEDS
    if capped.cache_releases or interval_bytes[1] > capacity_bytes:
        return Verdict.TIGHT
    return Verdict.FITS
