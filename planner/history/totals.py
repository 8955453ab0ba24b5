"""Counters and gauges of all processes together: totals that only grow, and levels that each process reports."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select

from planner.history.columns import compact_json
from planner.history.database import Database, put, upsert
from planner.history.history_errors import HistoryError
from planner.history.schema import LEVELS, TOTALS, WRITERS

Labels = tuple[tuple[str, str], ...]
"""Pairs of label and value, in the order of the labels."""
Series = tuple[str, Labels]
"""What is counted, and of what kind."""

LONGEST = 400
"""Characters of one series' labels: they are a key, of which a database takes no more than some 2,700 bytes."""
SILENT_AFTER = timedelta(seconds=30)
"""A process that has told nothing for so long is taken for dead, and its levels for untrue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFigures:
    """All there are, at one moment. Levels are sums over the processes that live; `writers` is how many they are."""

    totals: Mapping[Series, float] = field(default_factory=dict)
    levels: Mapping[Series, float] = field(default_factory=dict)
    writers: int = 0


class Totals:
    """What was counted."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def add(self, writer: str, batch: int, totals: Mapping[Series, float], levels: Mapping[Series, float]) -> bool:
        """Add a batch of one process to the totals and take over its levels; whether the batch was new.

        Batches of a process are numbered upwards. One that was added is not added again: who does not know whether
        a batch arrived sends it once more. `writer` is a name that no other process has, nor had.
        """
        with self._database.writing() as connection:
            last = _last_batch(connection, writer)
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
        """Forget a process that ends in order, with its levels; what it counted stays."""
        with self._database.writing() as connection:
            connection.execute(delete(WRITERS).where(WRITERS.c.writer == writer))

    def figures(self) -> SharedFigures:
        """Totals, and the levels of processes that told something lately."""
        lives = WRITERS.c.updated_at >= self._now() - SILENT_AFTER
        levels: dict[Series, float] = defaultdict(float)
        with self._database.reading() as connection:
            totals = {(row.name, _labels(row.labels)): row.value for row in connection.execute(select(TOTALS))}
            living = connection.execute(select(WRITERS.c.writer).where(lives)).scalars().all()
            told = select(LEVELS).join(WRITERS, WRITERS.c.writer == LEVELS.c.writer).where(lives)
            for row in connection.execute(told):
                levels[row.name, _labels(row.labels)] += row.value
        return SharedFigures(totals=totals, levels=dict(levels), writers=len(living))


def observe_value(name: str, value: float, bounds: Sequence[float], labels: Labels) -> dict[Series, float]:
    """One value of a distribution: counted into the first of ascending `bounds` that holds it, and to the sum."""
    place = bisect_left(bounds, value)
    bound = bound_text(bounds[place] if place < len(bounds) else math.inf)
    return {(f"{name}_bucket", (*labels, ("le", bound))): 1.0, (f"{name}_sum", labels): value}


def bound_text(bound: float) -> str:
    """A bound as Prometheus writes it."""
    return "+Inf" if math.isinf(bound) else repr(float(bound))


def labels_text(labels: Labels) -> str:
    """Labels as a key of a table. Raises HistoryError if they are too long for one."""
    text = compact_json(dict(labels))
    if len(text) > LONGEST:
        raise HistoryError(f"labels of {len(text)} characters", allowed=f"at most {LONGEST}", place=text[:40])
    return text


def add(connection: Connection, totals: Mapping[Series, float]) -> None:
    """Add to totals as a part of a transaction that does more."""
    # In one order everywhere: two who add to the same totals wait for each other, and never each for the other.
    for (name, labels), value in sorted(totals.items()):
        statement = upsert(connection, TOTALS, {"name": name, "labels": labels_text(labels), "value": value})
        more = TOTALS.c.value + statement.excluded.value
        connection.execute(statement.on_conflict_do_update(index_elements=["name", "labels"], set_={"value": more}))


def _last_batch(connection: Connection, writer: str) -> int:
    query = select(WRITERS.c.batch).where(WRITERS.c.writer == writer).with_for_update()
    found = connection.execute(query).scalar_one_or_none()
    return 0 if found is None else found


def _labels(text: str) -> Labels:
    return tuple((str(name), str(value)) for name, value in json.loads(text).items())
