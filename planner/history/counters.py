"""Counts in memory and adds the counts to the history every few seconds, so that no caller waits."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from planner.history.history_errors import HistoryError
from planner.history.names import label
from planner.history.totals import Labels, Series, Totals, labels_text, observe_value

FLUSH_SECONDS = 2.0
SAY_ALIVE_SECONDS = 10.0
"""How often a process that has nothing to tell says that it lives: well within `totals.SILENT_AFTER`."""
MOST_SERIES = 2_000
"""Of one process. Labels are bounded by those who count; if one was not, it ends here and not in a full disk."""
SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Bounds of durations: from an answer out of the store to a trace at its limit."""


class Counters:
    """What one process counts. Any thread may count; a with block flushes now and then, and at its end.

    Nothing is lost while the history cannot be reached, and nothing is counted twice: a batch whose fate is unknown
    is sent again under its number, and the history takes each number once.
    """

    def __init__(self, totals: Totals, every: float = FLUSH_SECONDS) -> None:
        self._totals, self._every = totals, every
        self._writer = uuid.uuid4().hex
        self._lock, self._flushing, self._ended = threading.Lock(), threading.Lock(), threading.Event()
        self._counted: dict[Series, float] = defaultdict(float)
        self._levels: dict[Series, float] = {}
        self._levels_changed = True
        self._number = 0
        self._sent: dict[Series, float] = {}
        """The last batch, of that number, until it is known to have arrived."""
        self._arrived_at = 0.0
        self._thread: threading.Thread | None = None
        self.refused = 0
        """How often something was not counted: no number, too many series, or labels too long."""

    def add(self, name: str, labels: Mapping[str, str], value: float = 1.0) -> None:
        """Count; labels are short texts out of bounded sets. Returns at once."""
        self._add({(name, _labels(labels)): value})

    def observe(self, name: str, labels: Mapping[str, str], value: float, bounds: Sequence[float] = SECONDS) -> None:
        """Count a value of a distribution, as :func:`planner.history.totals.observe_value`."""
        self._add(observe_value(name, value, bounds, _labels(labels)))

    def set(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """Tell a level as it now is; it is believed while this process lives."""
        series = name, _labels(labels)
        with self._lock:
            if not _is_welcome(series, value, self._levels):
                self.refused += 1
                return
            self._levels_changed |= self._levels.get(series) != value
            self._levels[series] = value

    def flush(self) -> None:
        """Hand everything over now. Raises HistoryUnavailableError; then it is kept for the next time."""
        with self._flushing:
            with self._lock:
                if not self._sent:
                    self._number += 1
                    self._sent = dict(self._counted)
                    self._counted.clear()
                levels, self._levels_changed = dict(self._levels), False
            try:
                self._totals.add(self._writer, self._number, self._sent, levels)
            except HistoryError:
                with self._lock:
                    self._levels_changed = True
                raise
            with self._lock:
                self._sent = {}
            self._arrived_at = time.monotonic()

    def start(self) -> None:
        """Flush in a thread from now on, until :meth:`close`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="counters", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Hand over what is left, and say good-bye. Never raises."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=30)
        with suppress(HistoryError):
            while self._has_news():
                self.flush()
            self._totals.leave(self._writer)

    def __enter__(self) -> Counters:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            if self._has_news() or time.monotonic() - self._arrived_at > SAY_ALIVE_SECONDS:
                with suppress(HistoryError):
                    self.flush()

    def _has_news(self) -> bool:
        with self._lock:
            return bool(self._counted or self._sent or self._levels_changed)

    def _add(self, more: Mapping[Series, float]) -> None:
        with self._lock:
            if not all(amount >= 0 and _is_welcome(each, amount, self._counted) for each, amount in more.items()):
                self.refused += 1
                return
            for series, amount in more.items():
                self._counted[series] += amount


def _is_welcome(series: Series, value: float, among: Mapping[Series, float]) -> bool:
    return math.isfinite(value) and (series in among or (len(among) < MOST_SERIES and _is_short(series)))


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple((name, label(value)) for name, value in sorted(labels.items()))


def _is_short(series: Series) -> bool:
    try:
        return bool(labels_text(series[1]))
    except HistoryError:
        return False
