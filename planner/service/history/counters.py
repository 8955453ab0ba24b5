"""Counters and gauges of all processes: counted in memory, added to the history every few seconds."""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import Connection, delete, insert, select

from planner.service.history.database import Store, put, upsert
from planner.service.history.errors import HistoryError, label
from planner.service.history.schema import LEVELS, TOTALS, WRITERS, compact_json

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]

LONGEST = 400
"""Characters of one series' labels: they are a key, of which a database takes no more than some 2,700 bytes."""
SILENT_AFTER = timedelta(seconds=30)
"""A process that has reported nothing for so long is considered dead, and its levels outdated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFigures:
    """All there are, at one moment. Levels are sums over the processes that live; `writers` is how many they are."""

    totals: Mapping[Series, float] = field(default_factory=dict)
    levels: Mapping[Series, float] = field(default_factory=dict)
    writers: int = 0


class Totals(Store):
    def add(self, writer: str, batch: int, totals: Mapping[Series, float], levels: Mapping[Series, float]) -> bool:
        """Add a batch of one process to the totals and take over its levels; whether the batch was new.

        Batches of a process are numbered upwards. One that was added is not added again: who does not know whether
        a batch arrived sends it once more. `writer` is a name that no other process has, nor had.
        """
        with self._database.writing() as connection:
            query = select(WRITERS.c.batch).where(WRITERS.c.writer == writer).with_for_update()
            last = connection.execute(query).scalar_one_or_none() or 0
            put(connection, WRITERS, {"writer": writer, "batch": max(batch, last), "updated_at": self._now()})
            if batch > last:
                add(connection, totals)
            connection.execute(delete(LEVELS).where(LEVELS.c.writer == writer))
            rows = [
                {"writer": writer, "name": name, "labels": labels_text(labels), "value": value}
                for (name, labels), value in levels.items()
            ]
            if rows:
                connection.execute(insert(LEVELS), rows)
        return batch > last

    def leave(self, writer: str) -> None:
        with self._database.writing() as connection:
            connection.execute(delete(WRITERS).where(WRITERS.c.writer == writer))

    def figures(self) -> SharedFigures:
        lives = WRITERS.c.updated_at >= self._now() - SILENT_AFTER
        levels: dict[Series, float] = defaultdict(float)
        with self._database.reading() as connection:
            totals = {(row.name, _read_labels(row.labels)): row.value for row in connection.execute(select(TOTALS))}
            living = connection.execute(select(WRITERS.c.writer).where(lives)).scalars().all()
            alive = select(LEVELS).join(WRITERS, WRITERS.c.writer == LEVELS.c.writer).where(lives)
            for row in connection.execute(alive):
                levels[row.name, _read_labels(row.labels)] += row.value
        return SharedFigures(totals=totals, levels=dict(levels), writers=len(living))


def observe_value(name: str, value: float, bounds: Sequence[float], labels: Labels) -> dict[Series, float]:
    """One value of a distribution: counted into the first of ascending `bounds` that holds it, and to the sum."""
    place = bisect_left(bounds, value)
    bound = bound_text(bounds[place] if place < len(bounds) else math.inf)
    return {(f"{name}_bucket", (*labels, ("le", bound))): 1.0, (f"{name}_sum", labels): value}


def bound_text(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else repr(float(bound))


def labels_text(labels: Labels) -> str:
    """Labels as a key of a table. Raises HistoryError if they are too long for one."""
    text = compact_json(dict(labels))
    if len(text) > LONGEST:
        raise HistoryError(f"labels of {len(text)} characters", allowed=f"at most {LONGEST}", place=text[:40])
    return text


def add(connection: Connection, totals: Mapping[Series, float]) -> None:
    # In one order everywhere: two who add to the same totals wait for each other, and never each for the other.
    for (name, labels), value in sorted(totals.items()):
        statement = upsert(connection, TOTALS, {"name": name, "labels": labels_text(labels), "value": value})
        more = TOTALS.c.value + statement.excluded.value
        connection.execute(statement.on_conflict_do_update(index_elements=["name", "labels"], set_={"value": more}))


def _read_labels(text: str) -> Labels:
    return tuple((str(name), str(value)) for name, value in json.loads(text).items())


FLUSH_SECONDS = 2.0
SAY_ALIVE_SECONDS = 10.0
"""How often a process that has nothing to tell says that it lives: well within SILENT_AFTER."""
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
        self._add({(name, _labels(labels)): value})

    def observe(self, name: str, labels: Mapping[str, str], value: float, bounds: Sequence[float] = SECONDS) -> None:
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
            if not all(amount >= 0 and _is_welcome(one, amount, self._counted) for one, amount in more.items()):
                self.refused += 1
                return
            for series, amount in more.items():
                self._counted[series] += amount


def _is_welcome(series: Series, value: float, among: Mapping[Series, float]) -> bool:
    if not math.isfinite(value) or (series not in among and len(among) >= MOST_SERIES):
        return False
    try:
        return series in among or bool(labels_text(series[1]))
    except HistoryError:
        return False


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple((name, label(value)) for name, value in sorted(labels.items()))
