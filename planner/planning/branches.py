"""Tries the other answers at lines of a program where a value that is not known on paper decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.errors import PlannerError
from planner.planning.program_ranks import are_alike
from planner.report.statement import BranchStatement, RankClassStatement
from planner.tracing.program.assumptions import Branch
from planner.tracing.program.rank_orders import ProgramOrder, RankRun

MOST_BRANCHES = 3
"""Lines that are tried."""
MOST_SECONDS = 60.0
"""Of the run so far: what takes longer is not run again unasked."""
_LONGER = 3.0
_WOULD_FIND_FILES = "not tried: with --allow-writes it would find the files of the first run, and change them"


def try_branches(
    taken: RankRun,
    order: ProgramOrder,
    run: Callable[[ProgramOrder], RankRun],
    judge: Callable[[RankRun], RankClassStatement],
) -> tuple[BranchStatement, ...]:
    """What would have come of the other answers, of the first lines that there are. `order` is the one of the run that
    was `taken`."""
    tried = [branch for branch in taken.branches if not branch.raises][:MOST_BRANCHES]
    again = replace(
        order,
        steps=order.steps if taken.is_whole else taken.iterations,
        steps_at=order.steps_at or tuple(each.step for each in taken.steps_at),
        usual=taken.usual,
        seconds=_LONGER * taken.trace.seconds + MOST_SECONDS,
    )

    def find_outcome(branch: Branch) -> BranchStatement:
        statement = BranchStatement(place=branch.place, taken=branch.answer, outcome="")
        reasons = {
            "an error is raised there": branch.raises,
            "not tried: others were": branch not in tried,
            "not tried: it takes long": taken.trace.seconds > MOST_SECONDS,
            _WOULD_FIND_FILES: order.writes,
        }
        if any(reasons.values()):
            return replace(statement, outcome=next(reason for reason, holds in reasons.items() if holds))
        try:
            other = run(replace(again, otherwise=branch.place))
        except PlannerError as error:
            return replace(statement, outcome=f"the program ends: {error.problem}")
        if other.failed and not taken.failed:
            return replace(statement, outcome=f"the program ends: {other.ending}")
        if are_alike(other.trace, taken.trace):
            return replace(statement, outcome="the same memory")
        before, after = judge(taken).peak, judge(other).peak
        ending = f"; it {other.ending.removeprefix('the program ')}" if other.is_whole and not taken.is_whole else ""
        return replace(
            statement,
            outcome=f"other memory{ending}",
            allocated_bytes=before.allocated_bytes,
            reserved_bytes=before.reserved_bytes,
            other_allocated_bytes=after.allocated_bytes,
            other_reserved_bytes=after.reserved_bytes,
        )

    return tuple(map(find_outcome, taken.branches))
