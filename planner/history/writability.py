"""Tests by writing whether the history can be written."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import column, table, update

from planner.history.database import Database
from planner.history.history_errors import HistoryUnavailableError
from planner.history.schema import VERSION_TABLE

EVERY_SECONDS = 5.0
"""How long an answer that it can is good for, in each process: probes come every second or two."""
ROOM_BYTES = 2**20
"""A plan with its trace, in SQLite's log and in its file."""

_VERSIONS = table(VERSION_TABLE, column("version_num"))


class Writability:
    """A write every few seconds at most, however often somebody asks."""

    def __init__(self, database: Database, now: Callable[[], float] = time.monotonic) -> None:
        self._database, self._now = database, now
        self._good_until = float("-inf")

    def probe(self) -> None:
        """Raises HistoryUnavailableError if nothing can be written."""
        if self._now() < self._good_until:
            return
        with self._database.writing() as connection:
            connection.execute(update(_VERSIONS).values(version_num=_VERSIONS.c.version_num))
        if (file := self._database.file) is not None:
            _refuse_full_disk(file, self._database.place)
        self._good_until = self._now() + EVERY_SECONDS


def _refuse_full_disk(file: Path, place: str) -> None:
    """SQLite writes into room that its files have already, so that a small write tells nothing of the next plan."""
    try:
        with tempfile.TemporaryFile(dir=file.parent) as room:
            os.posix_fallocate(room.fileno(), 0, ROOM_BYTES)
    except OSError as refused:
        raise HistoryUnavailableError(
            f"its disk has no room for a plan: {refused.strerror}",
            remedy="free space, or shorten the retention",
            place=place,
        ) from refused
