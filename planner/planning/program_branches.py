"""Runs a program once more for each line at which a value that nobody has decides: with the other answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import PlannerError
from planner.planning.program_ranks import are_alike
from planner.report.program_statement import BranchStatement
from planner.report.statement import RankClassStatement
from planner.running.branches import Branch
from planner.running.order import ProgramOrder, RankRun

MOST_BRANCHES = 3
"""Lines that are tried."""
MOST_SECONDS = 60.0
"""Of the run so far: what takes longer is not run again unasked."""
_LONGER = 3.0

Judge = Callable[[RankRun], RankClassStatement]


def try_branches(
    taken: RankRun, order: ProgramOrder, run: Callable[[ProgramOrder], RankRun], judge: Judge
) -> tuple[BranchStatement, ...]:
    """What would have come of the other answers, of the first lines that there are. `order` is the one of the run that
    was `taken`."""
    found = []
    for number, each in enumerate(taken.branches):
        if number >= MOST_BRANCHES or taken.trace.seconds > MOST_SECONDS:
            found.append(_state(each, "not tried: " + ("others were" if number >= MOST_BRANCHES else "it takes long")))
            continue
        again = replace(
            order,
            otherwise=each.place,
            steps=order.steps if taken.is_whole else taken.iterations,
            seconds=_LONGER * taken.trace.seconds + MOST_SECONDS,
        )
        found.append(_try(each, taken, again, run, judge))
    return tuple(found)


def _try(
    branch: Branch, taken: RankRun, order: ProgramOrder, run: Callable[[ProgramOrder], RankRun], judge: Judge
) -> BranchStatement:
    try:
        other = run(order)
    except PlannerError as error:
        return _state(branch, f"the program ends: {error.problem}")
    if are_alike(other.trace, taken.trace):
        return _state(branch, "the same memory")
    before, after = judge(taken).peak, judge(other).peak
    ending = f"; it {other.ending.removeprefix('the program ')}" if other.is_whole and not taken.is_whole else ""
    return replace(
        _state(branch, f"other memory{ending}"),
        allocated_bytes=before.allocated_bytes,
        reserved_bytes=before.reserved_bytes,
        other_allocated_bytes=after.allocated_bytes,
        other_reserved_bytes=after.reserved_bytes,
    )


def _state(branch: Branch, outcome: str) -> BranchStatement:
    return BranchStatement(place=branch.place, taken=branch.answer, outcome=outcome)
