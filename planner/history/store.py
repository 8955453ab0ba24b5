"""The history as one object: every table and query behind one database URL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType

from planner.history.active import ActivePlans, active_plans
from planner.history.calibration_table import Calibrations
from planner.history.capacity_totals import Capacity, capacity
from planner.history.check_table import Checks
from planner.history.database import Database
from planner.history.failure_table import Failures
from planner.history.job_list import JobSummary, list_jobs
from planner.history.job_table import Jobs
from planner.history.measured import MeasuredJob, measured_jobs, measured_validations
from planner.history.needs import JobNeed, read_needs
from planner.history.plan_table import Plans
from planner.history.retention import DeletedCounts, Retention, forget
from planner.history.search_table import Searches
from planner.history.totals import Totals
from planner.history.trace_table import Traces
from planner.history.validation_table import Validations
from planner.history.writability import Writability

MOST_ACTIVE = 50
"""Plans of which metrics tell every rank class: what a scrape of one megabyte can hold."""
MOST_NEEDS = 10_000
"""Jobs of which one question reads what they need."""
RECENT = timedelta(hours=1)


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
        self.checks = Checks(database)
        self.validations = Validations(database)
        self.searches = Searches(database)
        self.calibrations = Calibrations(database, now)
        self.totals = Totals(database, now)
        self._writability = Writability(database)

    @classmethod
    def open(cls, url: str, now: Callable[[], datetime] = _clock) -> History:
        """The history at `url` (`sqlite:///FILE`, `sqlite://`, `postgresql://...`), brought to this schema.

        Raises HistoryError for a URL that cannot be used, HistoryUnavailableError for a database that cannot be
        reached or that a newer planner has written.
        """
        return cls(Database.open(url), now)

    @property
    def place(self) -> str:
        """The URL without its password."""
        return self._database.place

    def ping(self) -> None:
        """Read one row. Raises HistoryUnavailableError if that does not work."""
        with self._database.reading() as connection:
            connection.exec_driver_sql("SELECT 1")

    def probe(self) -> None:
        """Read a row, and write one every few seconds. Raises HistoryUnavailableError: the history is not ready."""
        self.ping()
        self._writability.probe()

    def active_plans(self, limit: int = MOST_ACTIVE, recent: timedelta = RECENT) -> ActivePlans:
        """The plans of jobs that have not ended, then those used recently: at most `limit`, each newest first."""
        return active_plans(self._database, limit, self._now() - recent, self._now())

    def capacity(self, since: datetime | None = None) -> tuple[Capacity, ...]:
        """GPU bytes by team, queue and GPU type; `since` leaves out verdicts of jobs that ended before it."""
        return capacity(self._database, self._now(), since)

    def read_needs(self, since: datetime | None = None, limit: int = MOST_NEEDS) -> tuple[tuple[JobNeed, ...], int]:
        """What jobs need of a GPU: those that have not ended, or ended `since`; and how many were left out."""
        return read_needs(self._database, since, limit, self._now())

    def list_jobs(self, limit: int, plan_id: str | None = None) -> tuple[JobSummary, ...]:
        """At most `limit` jobs with what was predicted and measured, those told of last first."""
        return list_jobs(self._database, limit, plan_id)

    def measured_jobs(self, limit: int) -> tuple[MeasuredJob, ...]:
        """At most `limit` jobs of which ranks have reported their peaks, those told of last first."""
        return measured_jobs(self._database, limit)

    def measured_validations(self, limit: int) -> tuple[str, ...]:
        """The ids of at most `limit` validations that measured on a GPU to the end, newest first."""
        return measured_validations(self._database, limit)

    def forget(self, keep: Retention) -> DeletedCounts:
        """Delete what need not be kept; never the plan of a job that has not ended."""
        return forget(self._database, keep, self._now())

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
