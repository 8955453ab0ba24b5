"""What becomes of a job's cause as its ranks and its scheduler tell of its end, and how such ends are counted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row

from planner.history.job_values import JobChange, Outcome
from planner.history.totals import add
from planner.out_of_memory.failure import Cause

OUT_OF_MEMORY = "jobs_out_of_memory"
"""The total of jobs that ended out of memory, by whose memory it was and by cause: it is never forgotten."""
NOT_TOLD = "not_told"
"""In place of a cause, of a job of which only the end was told."""


def merge_failure(before: Row[Any], change: JobChange, *, runs_again: bool) -> dict[str, str | None]:
    """The cause and its words: of the first that knew one, since the other ranks fall with it."""
    known, said = (None, None) if runs_again else (before.cause, before.failure)
    if change.cause is None or known not in (None, Cause.UNKNOWN.value):
        return {"cause": known, "failure": said}
    if known == Cause.UNKNOWN.value and change.cause is Cause.UNKNOWN:
        return {"cause": known, "failure": said}
    return {"cause": change.cause.value, "failure": change.failure or said}


def count_failure(connection: Connection, before: Row[Any], after: dict[str, Any], *, runs_again: bool) -> None:
    """Counts an end out of memory once, when it is first told, by the cause that is known then."""
    ran_out = after["outcome"] == Outcome.OUT_OF_MEMORY.value
    if not ran_out or (before.outcome == Outcome.OUT_OF_MEMORY.value and not runs_again):
        return
    memory, cause = memory_of(after["cause"]), after["cause"] or NOT_TOLD
    add(connection, {(OUT_OF_MEMORY, (("cause", cause), ("memory", memory))): 1})


def memory_of(cause: str | None) -> str:
    """`gpu` or `host`; `not_told` where no cause is known."""
    if cause is None:
        return NOT_TOLD
    return "host" if Cause(cause).of_host else "gpu"
