"""Micro-batches of an accumulation that a program leaves out, since those that it runs say what they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from planner.events import Phase
from planner.paper.native_records import DoesNotFoldError, LeftOut
from planner.tracing.program.stopping import Moments

FEWEST = 4
"""The first has no gradients before it, and the last may be the only one that is reduced: between them are two, so that
they can be compared."""


def find_left_out(
    moments: Moments, phases: Iterable[tuple[int, Phase, int]], run: int, left_out: int
) -> Sequence[LeftOut]:
    """For each iteration, of which `run` micro-batches were run, where those between its second last two are that
    stand for those that are `left_out`. Raises DoesNotFoldError where a forward is not one of a micro-batch."""
    if not left_out:
        return ()
    forwards: defaultdict[int, list[int]] = defaultdict(list)
    for index, phase, iteration in phases:
        if phase is Phase.FORWARD:
            forwards[iteration].append(moments.log[index].position)
    stretches: list[LeftOut] = []
    for begins in forwards.values():
        if len(begins) != run:
            raise DoesNotFoldError(f"{len(begins)} forwards of {run} micro-batches")
        first, middle, end = begins[-3:]
        stretches.append(LeftOut(first, middle, end, left_out))
    return stretches
