"""Stores failed traces by the trace's id, so that a job that failed once need not fail again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update

from planner.history.database import Database, put
from planner.history.history_errors import HistoryUnavailableError
from planner.history.names import label
from planner.history.plan_table import USE_IS_NOTED_EVERY
from planner.history.schema import FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job cannot be traced, and the limits that its trace had."""

    trace_id: str
    kind: str
    """The name of the error's class."""
    problem: str
    allowed: str = ""
    remedy: str = ""
    place: str = ""
    trace_seconds: float
    trace_memory_bytes: int


class Failures:
    """The last failure of each trace. The id of a trace names the software, so other software starts without any."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, failure: Failure) -> None:
        """Store it, in the place of an earlier one of the same trace."""
        now = self._now()
        with self._database.writing() as connection:
            put(connection, FAILURES, {**dataclasses.asdict(failure), "failed_at": now, "used_at": now})

    def get(self, trace_id: str) -> Failure | None:
        """The failure of that trace; its use is noted, so that retention keeps it."""
        query = select(FAILURES).where(FAILURES.c.trace_id == label(trace_id))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        if self._now() - row.used_at >= USE_IS_NOTED_EVERY:
            self._note_use(trace_id)
        return Failure(**{each.name: getattr(row, each.name) for each in dataclasses.fields(Failure)})

    def _note_use(self, trace_id: str) -> None:
        # As for plans: who reads is not refused because nothing can be written.
        with suppress(HistoryUnavailableError), self._database.writing() as connection:
            connection.execute(update(FAILURES).where(FAILURES.c.trace_id == trace_id).values(used_at=self._now()))
