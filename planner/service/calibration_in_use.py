"""Keeps the calibration in use, read from the history every other second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from planner.calibration import document
from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.history.store import History
from planner.planning.measured_calibration import measured_calibration

LOOK_SECONDS = 2.0
"""A calibration that was learnt is used by every replica within this time."""
_log = logging.getLogger("planner.service")


class CalibrationInUse:
    """Shared by the threads of a replica."""

    def __init__(self, history: History, now: Callable[[], float] = time.monotonic) -> None:
        self._history, self._now = history, now
        self._lock = threading.Lock()
        self._known = measured_calibration()
        self._known_name = ""
        self._looked = -float("inf")

    def current(self) -> Calibration:
        """The one put last; the last one known if the history does not answer or what it holds cannot be read.

        It may read from the database, so it is not called on an event loop.
        """
        if self._now() - self._looked < LOOK_SECONDS:
            return self._known
        with self._lock:
            if self._now() - self._looked >= LOOK_SECONDS:
                self._look()
                self._looked = self._now()
        return self._known

    def _look(self) -> None:
        try:
            stored = self._history.calibrations.current()
            if stored is not None and stored.calibration_id != self._known_name:
                self._known = document.from_json(stored.document)
                self._known_name = stored.calibration_id
        except PlannerError as error:
            _log.warning("calibration %s stays in use: %s", self._known.id, error)
