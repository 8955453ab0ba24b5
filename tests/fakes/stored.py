"""Histories to begin with, and what they hold, as values that only tests ask for."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import select

from planner.report.statement import Verdict
from planner.service.history.database import read_record
from planner.service.history.records import Check
from planner.service.history.schema import CHECKS
from planner.service.history.store import History
from planner.tracing import rank_trace
from planner.tracing.rank_trace import Trace

_FOLDER = tempfile.TemporaryDirectory(prefix="planner-history-")


@functools.cache
def _empty_history() -> Path:
    path = Path(_FOLDER.name) / "history.db"
    with History.open(f"sqlite:///{path}"):
        return path


def new_history(folder: Path) -> str:
    """The URL of an empty history in that folder: its tables are made once in a process, and copied."""
    shutil.copy(_empty_history(), folder / "history.db")
    return f"sqlite:///{folder}/history.db"


def put_traces(history: History, trace_id: str, traces: Mapping[int, Trace]) -> None:
    history.traces.put(trace_id, {rank: rank_trace.dumps(trace) for rank, trace in traces.items()})


def get_traces(history: History, trace_id: str) -> dict[int, Trace]:
    return {rank: rank_trace.loads(text) for rank, text in history.traces.texts(trace_id).items()}


def all_checks(history: History) -> tuple[Check, ...]:
    """The newest first."""
    with history._database.reading() as connection:
        rows = connection.execute(select(CHECKS).order_by(CHECKS.c.asked_at.desc())).all()
    return tuple(read_record(Check, row, verdict=Verdict(row.verdict) if row.verdict else None) for row in rows)
