"""Stores the traces of a job's rank classes by trace id, so that a new calibration needs no new trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from sqlalchemy import select, update

from planner.history.database import Database, put
from planner.history.history_errors import HistoryUnavailableError
from planner.history.names import label
from planner.history.plan_table import USE_IS_NOTED_EVERY
from planner.history.schema import TRACES
from planner.tracing import trace_text
from planner.tracing.traced import Trace


class Traces:
    """What was traced: one trace for each rank class, under the rank that represents it."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, trace_id: str, traces: Mapping[int, Trace]) -> None:
        """Store the traces of a job by representative: all of them or, if this fails, none."""
        self.put_texts(trace_id, {rank: trace_text.dumps(trace) for rank, trace in traces.items()})

    def put_texts(self, trace_id: str, texts: Mapping[int, str]) -> None:
        """As :meth:`put`, for traces that are text already."""
        now = self._now()
        with self._database.writing() as connection:
            for rank, text in sorted(texts.items()):
                row = {"trace_id": trace_id, "representative": rank, "used_at": now, "document": text}
                put(connection, TRACES, row)

    def get(self, trace_id: str) -> dict[int, Trace]:
        """The traces of a job by representative; empty if there are none."""
        return {rank: trace_text.loads(text) for rank, text in self.texts(trace_id).items()}

    def texts(self, trace_id: str) -> dict[int, str]:
        """As :meth:`get`, as the text that was stored, unread."""
        query = select(TRACES).where(TRACES.c.trace_id == label(trace_id)).order_by(TRACES.c.representative)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        if rows and self._now() - rows[0].used_at >= USE_IS_NOTED_EVERY:
            self._note_use(trace_id)
        return {row.representative: row.document for row in rows}

    def _note_use(self, trace_id: str) -> None:
        # As for plans: who reads is not refused because nothing can be written.
        with suppress(HistoryUnavailableError), self._database.writing() as connection:
            connection.execute(update(TRACES).where(TRACES.c.trace_id == trace_id).values(used_at=self._now()))
