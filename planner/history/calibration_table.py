"""Stores calibrations by their id; the one that was put last is in use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select

from planner.history.columns import compact_json
from planner.history.database import Database, put
from planner.history.names import checked_name, label
from planner.history.schema import CALIBRATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration:
    """A calibration as the JSON object that it was stored as, and from how many measurements it was learnt."""

    calibration_id: str
    stored_at: datetime
    measurements: int
    document: Mapping[str, Any]


class Calibrations:
    """What was learnt."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def put(self, calibration_id: str, document: Mapping[str, Any], measurements: int = 0) -> None:
        """Store the calibration and make it the current one; again is the same as once."""
        row = {
            "calibration_id": checked_name(calibration_id, "calibration_id"),
            "stored_at": self._now(),
            "measurements": measurements,
            "document": compact_json(document),
        }
        with self._database.writing() as connection:
            put(connection, CALIBRATIONS, row)

    def get(self, calibration_id: str) -> StoredCalibration | None:
        """The calibration of that id; None if there is none."""
        query = select(CALIBRATIONS).where(CALIBRATIONS.c.calibration_id == label(calibration_id))
        with self._database.reading() as connection:
            found = connection.execute(query).one_or_none()
        return None if found is None else _read_row(found)

    def current(self) -> StoredCalibration | None:
        """The one that was put last; None if nothing was learnt yet."""
        return next(iter(self.newest(1)), None)

    def newest(self, limit: int = 100) -> tuple[StoredCalibration, ...]:
        """At most `limit` calibrations, the current one first."""
        order = (CALIBRATIONS.c.stored_at.desc(), CALIBRATIONS.c.calibration_id)
        with self._database.reading() as connection:
            rows = connection.execute(select(CALIBRATIONS).order_by(*order).limit(limit)).all()
        return tuple(_read_row(row) for row in rows)


def _read_row(row: Row[Any]) -> StoredCalibration:
    return StoredCalibration(
        calibration_id=row.calibration_id,
        stored_at=row.stored_at,
        measurements=row.measurements,
        document=json.loads(row.document),
    )
