"""The history as one object, every table and query behind one database URL; and what it deletes by age and number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Column, ColumnElement, delete, exists, or_, select, true

from planner.service.history.capacity import Capacity, JobNeed, SharedGpu, capacity, read_needs, read_shared_gpus
from planner.service.history.counters import Totals
from planner.service.history.database import Database, Writability
from planner.service.history.job_table import Jobs, has_ended, is_open
from planner.service.history.plan_table import Failures, Plans, Traces
from planner.service.history.records import Calibrations, Checks, Searches, Validations
from planner.service.history.schema import (
    CALIBRATIONS,
    CHECKS,
    FAILURES,
    IDS,
    JOBS,
    KEYS,
    PLANS,
    SEARCHES,
    TRACES,
    VALIDATIONS,
    WRITERS,
)

_AT_ONCE = 500
"""Rows of one transaction: others wait for no more than these."""
DEAD_AFTER = timedelta(days=1)
"""A process that tells its levels every few seconds and was silent for so long is gone, and so are its levels. Totals
stay: they have no age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept. Ages are since a plan, trace or failure was used last, a check, validation or search asked for."""

    age: timedelta = timedelta(days=90)
    plans: int = 10_000
    traces: int = 1_000
    """Traces are large, and can be made again."""
    failures: int = 10_000
    checks: int = 100_000
    validations: int = 10_000
    searches: int = 1_000
    calibrations: int = 100


def forget(database: Database, keep: Retention, now: datetime) -> dict[str, int]:
    """Delete what need not be kept, in transactions of a few hundred rows; how many rows of which kind were there.

    Jobs go with the plan to which they are bound. What dead processes (`writers`) counted stays.
    """
    oldest = now - keep.age

    def forget_rows(moment: Column[datetime], count: int, oldest: datetime | None = oldest) -> int:
        key, deleted = next(iter(moment.table.primary_key)), 0
        while True:
            with database.writing() as connection:
                query = select(key).where(_is_beyond_limits(moment, count, oldest)).order_by(moment).limit(_AT_ONCE)
                ids = connection.execute(query).scalars().all()
                deleted += connection.execute(delete(moment.table).where(key.in_(ids))).rowcount
            if len(ids) < _AT_ONCE:
                return deleted

    plans, jobs = _forget_plans(database, keep, oldest, now)
    counts = {
        "plans": plans,
        "jobs": jobs,
        "traces": forget_rows(TRACES.c.used_at, keep.traces),
        "failures": forget_rows(FAILURES.c.used_at, keep.failures),
        "checks": forget_rows(CHECKS.c.asked_at, keep.checks),
        "validations": forget_rows(VALIDATIONS.c.asked_at, keep.validations),
        "searches": forget_rows(SEARCHES.c.asked_at, keep.searches),
        "calibrations": forget_rows(CALIBRATIONS.c.stored_at, keep.calibrations, None),
    }
    with database.writing() as connection:
        silent = delete(WRITERS).where(WRITERS.c.updated_at < now - DEAD_AFTER)
        counts["writers"] = connection.execute(silent).rowcount
    return {name: count for name, count in counts.items() if count}


def _forget_plans(database: Database, keep: Retention, oldest: datetime, now: datetime) -> tuple[int, int]:
    plans = jobs = 0
    of_open_job = exists().where(JOBS.c.plan_id == PLANS.c.plan_id, is_open(now))
    query = (
        select(PLANS.c.plan_id)
        .where(~of_open_job, _is_beyond_limits(PLANS.c.used_at, keep.plans, oldest))
        .order_by(PLANS.c.used_at)
        .limit(_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    while True:
        with database.writing() as connection:
            ids = connection.execute(query).scalars().all()
            # Whoever binds a job to one of them in this moment waits for us, or was quicker and keeps the plan:
            # each statement looks at the jobs anew.
            ended = delete(JOBS).where(JOBS.c.plan_id.in_(ids), has_ended(now))
            jobs += connection.execute(ended).rowcount
            free = ~exists().where(JOBS.c.plan_id == PLANS.c.plan_id)
            deleted = connection.execute(delete(PLANS).where(PLANS.c.plan_id.in_(ids), free)).rowcount
        plans += deleted
        if deleted < _AT_ONCE:
            return plans, jobs


def _is_beyond_limits(moment: Column[datetime], count: int, oldest: datetime | None) -> ColumnElement[bool]:
    """Rows that are too old, or older than the newest `count`; of equally old ones all are kept."""
    if count <= 0:
        return true()
    last_kept = select(moment).order_by(moment.desc()).offset(count - 1).limit(1).scalar_subquery()
    beyond = moment < last_kept
    return beyond if oldest is None else or_(beyond, moment < oldest)


MOST_NEEDS = 10_000


def _clock() -> datetime:
    return datetime.now(UTC)


class History:
    """Opened once by each process and shared by its threads; a with block closes it.

    Every method raises HistoryUnavailableError if the database cannot be reached, is full or too busy, and then
    nothing of the call is stored.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = _clock) -> None:
        self._database, self._now = database, now
        self.plans = Plans(database, now)
        self.traces = Traces(database, now)
        self.failures = Failures(database, now)
        self.jobs = Jobs(database, now)
        self.checks = Checks(database, now)
        self.validations = Validations(database, now)
        self.searches = Searches(database, now)
        self.calibrations = Calibrations(database, now)
        self.totals = Totals(database, now)
        self._writability = Writability(database)
        with database.reading() as connection:
            self.id_key = connection.execute(select(KEYS.c.value).where(KEYS.c.name == IDS)).scalar_one()
        """What ids of what has secrets are keyed with: the same for all processes on this database."""

    @classmethod
    def open(cls, url: str, now: Callable[[], datetime] = _clock) -> History:
        """The history at `url` (`sqlite:///FILE`, `sqlite://`, `postgresql://...`), brought to this schema.

        Raises HistoryError for a URL that cannot be used, HistoryUnavailableError for a database that cannot be
        reached or that a newer planner has written.
        """
        return cls(Database.open(url), now)

    @property
    def place(self) -> str:
        return self._database.place

    def probe(self) -> None:
        """Read a row, and write one every few seconds. Raises HistoryUnavailableError: the history is not ready."""
        with self._database.reading() as connection:
            connection.exec_driver_sql("SELECT 1")
        self._writability.probe()

    def capacity(self, since: datetime | None = None) -> tuple[Capacity, ...]:
        return capacity(self._database, self._now(), since)

    def read_shared_gpus(self) -> tuple[SharedGpu, ...]:
        return read_shared_gpus(self._database, self._now())

    def read_needs(self, since: datetime | None = None, limit: int = MOST_NEEDS) -> tuple[tuple[JobNeed, ...], int]:
        return read_needs(self._database, since, limit, self._now())

    def forget(self, keep: Retention) -> dict[str, int]:
        """Delete what need not be kept, never the plan of a job that has not ended; how many of which kind."""
        return forget(self._database, keep, self._now())

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
