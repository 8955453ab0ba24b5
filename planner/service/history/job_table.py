"""Stores jobs by the id of the system that runs them: merges reports of one, and lists them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select, tuple_, update

from planner.job.masking import mask_text
from planner.job.rank_sets import RankSet
from planner.report.statement import Verdict
from planner.service.history.counters import add
from planner.service.history.database import Store, batches, put_if_absent, read_record, to_row, upsert
from planner.service.history.errors import HistoryError, checked_label, checked_name, label
from planner.service.history.plan_table import (
    HostSummary,
    PlanSummary,
    RankClassSummary,
    plan_summary,
    select_rank_classes,
    summaries,
)
from planner.service.history.schema import JOBS, MEASURED_RANKS, PLANS, compact_json
from planner.truth.failures.messages import Cause


class Outcome(StrEnum):
    """How a job ended, the worst last; OPEN until it is told."""

    OPEN = ""
    FINISHED = "finished"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """The peaks that one rank saw, in bytes; None is not measured."""

    rank: int
    host: str = ""
    gpu_uuid: str = ""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None


PEAKS = ("allocated_bytes", "reserved_bytes", "device_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What is newly known of a job; None leaves what was known.

    Every rank may tell what it knows, in any order: hosts, GPUs and ranks are merged, the earliest start, the latest
    end and the worst outcome stand. A start after the end says that the job runs again.
    """

    plan_id: str | None = None
    team: str | None = None
    queue: str | None = None
    hosts: tuple[str, ...] | None = None
    """In the order of nodes."""
    gpu_uuids: tuple[str, ...] | None = None
    """In the order of ranks."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    """An outcome without an end ends the job now."""
    cause: Cause | None = None
    """Why it ran out of memory; the first one that is known stands."""
    failure: str = ""
    """The words from which the cause is known: torch's, Slurm's, Kubernetes', the kernel's."""
    lease_seconds: float | None = None
    """For so long from now the job counts as running, unless its end is told or the lease renewed; of an ended job it
    says that it runs again."""
    measured: tuple[MeasuredRank, ...] = ()
    reports: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """What a rank tells beyond its peaks, as JSON, by rank; the last one stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundJob:
    system: str
    job_id: str
    plan_id: str
    team: str
    queue: str
    hosts: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    started_at: datetime | None
    ended_at: datetime | None
    outcome: Outcome
    measured: tuple[MeasuredRank, ...]
    lapses_at: datetime | None = None
    """When it counts as ended though nobody told; None: it runs until somebody tells."""
    cause: Cause | None = None
    failure: str = ""


MOST_BYTES = 2**42
"""4 TiB: no GPU has as much, and the sum over the ranks of the largest job (job/size_limits.py) fits into a column."""
FIRST_MOMENT, LAST_MOMENT = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Between which jobs run. The year 1 in another time zone can be written, and never be read again."""
LONGEST_LEASE = 24 * 60 * 60
"""Seconds: a job that is reported less often needs none."""
LONGEST_REPORT = 2**18
LONGEST_FAILURE = 2**12
_SYSTEM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def check_change(system: str, job_id: str, change: JobChange) -> None:
    """Raises HistoryError for what no job can have."""
    if not _SYSTEM.fullmatch(system):
        _refuse("system", f"{system[:63]!a} is not a valid name of a system", "such as slurm, ray, kubernetes")
    checked_name(job_id, "id")
    for name in ("plan_id", "team", "queue"):
        checked_label(getattr(change, name) or "", name)
    for name in ("hosts", "gpu_uuids"):
        for value in getattr(change, name) or ():
            checked_name(value, name)
    for name, moment in (("started_at", change.started_at), ("ended_at", change.ended_at)):
        if moment is not None and moment.tzinfo is None:
            _refuse(name, f"{moment.isoformat()} has no time zone", "such as 2026-01-31T12:00:00Z")
        if moment is not None and not FIRST_MOMENT <= moment <= LAST_MOMENT:
            years = f"{FIRST_MOMENT:%Y-%m-%d} to {LAST_MOMENT:%Y-%m-%d}"
            _refuse(name, f"nothing ran at {moment.isoformat()}", years)
    if change.lease_seconds is not None and not 0 < change.lease_seconds <= LONGEST_LEASE:
        _refuse("lease_seconds", f"a lease of {change.lease_seconds} s", f"more than 0, at most {LONGEST_LEASE}")
    if len(change.failure) > LONGEST_FAILURE or "\0" in change.failure:
        _refuse("failure", f"{len(change.failure)} characters of failure", f"at most {LONGEST_FAILURE}, no NUL")
    for peaks in change.measured:
        checked_label(peaks.host, "measured.host")
        checked_label(peaks.gpu_uuid, "measured.gpu_uuid")
        for name in PEAKS:
            count = getattr(peaks, name)
            if count is not None and not 0 <= count <= MOST_BYTES:
                _refuse(f"measured.{name}", f"{count} bytes", f"0 to {MOST_BYTES}")
    for report in change.reports.values():
        if (length := len(compact_json(report))) > LONGEST_REPORT:
            _refuse("measured.report", f"{length} characters", f"at most {LONGEST_REPORT}")


def check_merged(change: JobChange, world_size: int, started_at: datetime | None, ended_at: datetime | None) -> None:
    """Raises HistoryError for what this job, of `world_size` ranks, cannot have."""
    if started_at is not None and ended_at is not None and ended_at < started_at:
        moments = f"{ended_at.isoformat()}, before its start at {started_at.isoformat()}"
        _refuse("ended_at", f"the job would end at {moments}")
    for name, names in (("hosts", change.hosts or ()), ("gpu_uuids", change.gpu_uuids or ())):
        if len(names) > world_size:
            _refuse(name, f"{len(names)} of them", f"{world_size}, by the plan")
    for rank in [*(peaks.rank for peaks in change.measured), *change.reports]:
        if not 0 <= rank < world_size:
            _refuse("measured.rank", f"rank {rank}", f"0 to {world_size - 1}, by the plan")


def _refuse(place: str, problem: str, allowed: str = "") -> None:
    raise HistoryError(problem, allowed=allowed, place=place)


OUT_OF_MEMORY = "jobs_out_of_memory"
"""The total of jobs that ended out of memory, by whose memory it was and by cause: it is never forgotten."""
NOT_TOLD = "not_told"
"""In place of a cause, of a job of which only the end was told."""


def merge_failure(before: Row[Any], change: JobChange, *, runs_again: bool) -> dict[str, str | None]:
    """The cause and its words: of the first that knew one, since the other ranks fall with it."""
    cause, failure = (None, None) if runs_again else (before.cause, before.failure)
    is_first = cause is None and change.cause is not None
    is_better = cause == Cause.UNKNOWN.value and change.cause not in (None, Cause.UNKNOWN)
    if change.cause is not None and (is_first or is_better):
        return {"cause": change.cause.value, "failure": mask_text(change.failure) or failure}
    return {"cause": cause, "failure": failure}


def count_failure(connection: Connection, before: Row[Any], after: dict[str, Any], *, runs_again: bool) -> None:
    """Counts an end out of memory once, when it is first told, by the cause that is known then."""
    ran_out = after["outcome"] == Outcome.OUT_OF_MEMORY.value
    if not ran_out or (before.outcome == Outcome.OUT_OF_MEMORY.value and not runs_again):
        return
    memory, cause = whose_memory(after["cause"]), after["cause"] or NOT_TOLD
    add(connection, {(OUT_OF_MEMORY, (("cause", cause), ("memory", memory))): 1})


def whose_memory(cause: str | None) -> str:
    """`gpu` or `host`; `not_told` where no cause is known."""
    if cause is None:
        return NOT_TOLD
    return "host" if Cause(cause).of_host else "gpu"


def is_open(now: datetime) -> ColumnElement[bool]:
    return and_(JOBS.c.ended_at.is_(None), or_(JOBS.c.lapses_at.is_(None), JOBS.c.lapses_at > now))


def has_ended(now: datetime) -> ColumnElement[bool]:
    return or_(JOBS.c.ended_at.is_not(None), JOBS.c.lapses_at <= now)


def ended_since(moment: datetime, now: datetime) -> ColumnElement[bool]:
    """A job that ended at this moment or later; one whose end nobody told ended when its lease was over."""
    lapsed = and_(JOBS.c.ended_at.is_(None), JOBS.c.lapses_at <= now, JOBS.c.lapses_at >= moment)
    return or_(JOBS.c.ended_at >= moment, lapsed)


rank_of_job = and_(MEASURED_RANKS.c.system == JOBS.c.system, MEASURED_RANKS.c.job_id == JOBS.c.job_id)
_RANK_KEYS = ("system", "job_id", "rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job in a list. Bytes are device bytes of the rank that told the most; null where none told any."""

    system: str
    job_id: str
    plan_id: str
    name: str
    team: str
    queue: str
    gpu: str
    ranks: int
    verdict: Verdict
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    outcome: str
    cause: str
    """Why it ran out of memory: single_request, limit, fragmentation, private_pools, other_process, outside_allocator,
    not_pytorch, full, refused, unknown; host_limit and host are the host's memory. Else empty."""
    measured_ranks: int
    measured_bytes: int | None
    predicted_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    """A plan, its rank classes, and the jobs bound to it that have not ended."""

    summary: PlanSummary
    host: HostSummary | None
    """None of the run of a program, and of plans that were made before hosts were planned."""
    rank_classes: tuple[RankClassSummary, ...]
    jobs: tuple[BoundJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlans:
    plans: tuple[ActivePlan, ...]
    left_out: int


MOST_ACTIVE = 50
"""Plans of which metrics tell every rank class: what a scrape of one megabyte can hold."""
RECENT = timedelta(hours=1)


class Jobs(Store):
    def bind(self, system: str, job_id: str, change: JobChange) -> BoundJob:
        """Merge what is newly known into the job, and give it as it now is.

        The first change names the plan; telling the same again changes nothing. Of the peaks only those of the
        ranks in `change` are given back: a job may have thousands. Raises HistoryError for what cannot be.
        """
        check_change(system, job_id, change)
        here = and_(JOBS.c.system == system, JOBS.c.job_id == job_id)
        with self._database.writing() as connection:
            before = self._lock_row(connection, system, job_id, change)
            plan_id = change.plan_id or before.plan_id
            # Nobody deletes the plan until this is done.
            of_plan = select(PLANS.c.ranks).where(PLANS.c.plan_id == plan_id).with_for_update(read=True)
            world_size = connection.execute(of_plan).scalar_one_or_none()
            if world_size is None:
                raise _no_plan(plan_id)
            after = _merge_change(before, change, int(world_size), self._now()) | {"plan_id": plan_id}
            check_merged(change, int(world_size), after["started_at"], after["ended_at"])
            connection.execute(update(JOBS).where(here).values(after))
            count_failure(connection, before, after, runs_again=_runs_again(before, change))
            reported = {rank: MeasuredRank(rank=rank) for rank in change.reports}
            for peaks in change.measured:
                reported[peaks.rank] = _higher(reported.get(peaks.rank, peaks), peaks)
            # Another plan predicted other bytes, for every rank that was measured.
            ranks = list(reported) if plan_id == before.plan_id else None
            known = _measured_ranks(connection, [(system, job_id)], ranks)[system, job_id]
            if reported or known:
                classes = select_rank_classes(connection, [plan_id]).get(plan_id, ())
                predictions = [(RankSet.parse(one.ranks), one.device_bytes) for one in classes]
                for rank in {**known, **reported}:
                    nothing = MeasuredRank(rank=rank)
                    peaks = _higher(known.get(rank, nothing), reported.get(rank, nothing))
                    # Beside the device bytes that were predicted for it, so that sums can be set side by side.
                    predicted = next((device for ranks_of, device in predictions if rank in ranks_of), 0)
                    row = to_row(peaks, system=system, job_id=job_id, predicted_bytes=predicted)
                    if rank in change.reports:
                        row["report"] = mask_text(compact_json(change.reports[rank]))
                    changes = {name: value for name, value in row.items() if name not in _RANK_KEYS}
                    statement = upsert(connection, MEASURED_RANKS, {"report": "", **row})
                    connection.execute(statement.on_conflict_do_update(index_elements=_RANK_KEYS, set_=changes))
            return _read_bound_jobs(connection, [here], ranks=list(reported))[0]

    def get(self, system: str, job_id: str) -> BoundJob | None:
        here = and_(JOBS.c.system == label(system), JOBS.c.job_id == label(job_id))
        with self._database.reading() as connection:
            return next(iter(_read_bound_jobs(connection, [here])), None)

    def open(self, limit: int = 1000) -> tuple[BoundJob, ...]:
        with self._database.reading() as connection:
            return _read_bound_jobs(connection, [is_open(self._now())], limit)

    def reports(self, system: str, job_id: str) -> dict[int, Any]:
        ranks = MEASURED_RANKS.c
        here = and_(ranks.system == label(system), ranks.job_id == label(job_id))
        rows = self._read(select(ranks.rank, ranks.report).where(here).order_by(ranks.rank))
        return {row.rank: json.loads(row.report) for row in rows if row.report}

    def list(self, limit: int, plan_id: str | None = None) -> tuple[JobSummary, ...]:
        query = (
            select(JOBS, PLANS.c.name, PLANS.c.gpu, PLANS.c.ranks, PLANS.c.verdict)
            .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
            .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
            .limit(limit)
        )
        if plan_id is not None:
            query = query.where(JOBS.c.plan_id == label(plan_id))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            fullest = fullest_ranks(connection, [(row.system, row.job_id) for row in rows])
        summaries_of_jobs = []
        for row in rows:
            count, measured, predicted = fullest.get((row.system, row.job_id), (0, None, None))
            summary = read_record(
                JobSummary, row, verdict=Verdict(row.verdict), cause=row.cause or "", measured_ranks=count,
                measured_bytes=measured, predicted_bytes=predicted,
            )  # fmt: skip
            summaries_of_jobs.append(summary)
        return tuple(summaries_of_jobs)

    def measured(self, limit: int) -> tuple[tuple[str, str, datetime], ...]:
        """System, id and moment of the last word of at most `limit` jobs of which some rank has reported what it took,
        those reported last first."""
        query = (
            select(JOBS.c.system, JOBS.c.job_id, JOBS.c.updated_at)
            .where(exists().where(rank_of_job, MEASURED_RANKS.c.reserved_bytes.is_not(None)))
            .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return tuple((row.system, row.job_id, row.updated_at) for row in connection.execute(query))

    def active_plans(self, limit: int = MOST_ACTIVE, recently: timedelta = RECENT) -> ActivePlans:
        now = self._now()
        has_job = PLANS.c.plan_id.in_(select(JOBS.c.plan_id).where(is_open(now)))
        recent = and_(~has_job, PLANS.c.used_at >= now - recently)
        with self._database.reading() as connection:
            count = connection.execute(select(func.count()).select_from(PLANS).where(or_(has_job, recent))).scalar_one()
            ids: list[str] = []
            for kind in (has_job, recent):  # one after the other: each is found along an index, without sorting all
                query = select(PLANS.c.plan_id).where(kind).order_by(PLANS.c.stored_at.desc(), PLANS.c.plan_id)
                ids += connection.execute(query.limit(limit - len(ids))).scalars()
            rows = connection.execute(summaries().where(PLANS.c.plan_id.in_(ids))).all()
            classes = select_rank_classes(connection, ids)
            jobs: dict[str, list[BoundJob]] = defaultdict(list)
            for job in _read_bound_jobs(connection, [JOBS.c.plan_id.in_(ids), is_open(now)]):
                jobs[job.plan_id].append(job)
        plans = []
        for row in sorted(rows, key=lambda row: ids.index(row.plan_id)):
            host = None if row.nodes is None else HostSummary(
                nodes=row.nodes, fullest_bytes=row.host_bytes, capacity_bytes=row.host_capacity_bytes,
                predicted_bytes=row.host_predicted_bytes,
            )  # fmt: skip
            plan = ActivePlan(
                summary=plan_summary(row), host=host, rank_classes=classes.get(row.plan_id, ()),
                jobs=tuple(jobs[row.plan_id]),
            )  # fmt: skip
            plans.append(plan)
        return ActivePlans(plans=tuple(plans), left_out=count - len(plans))

    def _lock_row(self, connection: Connection, system: str, job_id: str, change: JobChange) -> Row[Any]:
        """The job's row, which others cannot change until we are done; made if this is its first change."""
        here = select(JOBS).where(JOBS.c.system == system, JOBS.c.job_id == job_id).with_for_update()
        row = connection.execute(here).one_or_none()
        if row is not None:
            return row
        if change.plan_id is None:
            raise HistoryError(
                f"job {job_id} of {system} is bound to no plan yet", remedy="name its plan first", place="plan_id"
            )
        named = select(PLANS.c.team, PLANS.c.queue).where(PLANS.c.plan_id == label(change.plan_id))
        plan = connection.execute(named.with_for_update(read=True)).one_or_none()
        if plan is None:
            raise _no_plan(change.plan_id)
        first = {
            "system": system, "job_id": job_id, "plan_id": change.plan_id, "team": plan.team, "queue": plan.queue,
            "hosts": [], "gpu_uuids": [], "outcome": "", "updated_at": self._now(),
        }  # fmt: skip
        put_if_absent(connection, JOBS, first)
        return connection.execute(here).one()


def _no_plan(plan_id: str) -> HistoryError:
    return HistoryError(f"there is no plan {label(plan_id)!a}", remedy="plan the job first", place="plan_id")


def _merge_change(before: Row[Any], change: JobChange, world_size: int, now: datetime) -> dict[str, Any]:
    runs_again = _runs_again(before, change)
    starts = [change.started_at] if runs_again else [before.started_at, change.started_at]
    ends = [change.ended_at] if runs_again else [before.ended_at, change.ended_at]
    outcomes = (Outcome.OPEN if runs_again else Outcome(before.outcome), change.outcome or Outcome.OPEN)
    outcome = max(outcomes, key=list(Outcome).index)
    told_end = max((moment for moment in ends if moment is not None), default=None)
    ended_at = now if told_end is None and outcome is not Outcome.OPEN else told_end
    lapses_at = before.lapses_at
    if change.lease_seconds is not None:
        until = now + timedelta(seconds=change.lease_seconds)
        lapses_at = until if lapses_at is None else max(lapses_at, until)
    return {
        "team": before.team if change.team is None else label(change.team),
        "queue": before.queue if change.queue is None else label(change.queue),
        "hosts": _unite_names(before.hosts, change.hosts, world_size),
        "gpu_uuids": _unite_names(before.gpu_uuids, change.gpu_uuids, world_size),
        "started_at": min((moment for moment in starts if moment is not None), default=None),
        "ended_at": ended_at,
        "outcome": outcome.value,
        "updated_at": now,
        "lapses_at": None if ended_at is not None else lapses_at,
        **merge_failure(before, change, runs_again=runs_again),
    }


def _runs_again(before: Row[Any], change: JobChange) -> bool:
    """A start after the end says so, and a lease of a job that ended."""
    if before.ended_at is None or change.outcome is not None:
        return False
    if change.started_at is not None and change.started_at > before.ended_at:
        return True
    return change.lease_seconds is not None and change.ended_at is None


def _unite_names(before: Sequence[str], names: Sequence[str] | None, most: int) -> list[str]:
    """Whoever tells all of them says their order; one rank tells of itself. More than the job has: it has moved."""
    if names is None or set(names) <= set(before):
        return list(before)
    missing = [] if set(before) <= set(names) else [name for name in before if name not in names]
    return list(names) if len(missing) + len(names) > most else [*missing, *names]


def _higher(before: MeasuredRank, now: MeasuredRank) -> MeasuredRank:
    """A peak only rises: reports may come late, twice, and in any order."""
    peaks = {}
    for name in PEAKS:
        known = [count for count in (getattr(before, name), getattr(now, name)) if count is not None]
        peaks[name] = max(known, default=None)
    return MeasuredRank(
        rank=now.rank, host=now.host or before.host, gpu_uuid=now.gpu_uuid or before.gpu_uuid, **peaks
    )  # fmt: skip


def _read_bound_jobs(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    limit: int | None = None,
    ranks: Sequence[int] | None = None,
) -> tuple[BoundJob, ...]:
    """Jobs with what was measured, by some of their ranks or by all."""
    query = select(JOBS).where(*conditions).order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
    rows = connection.execute(query.limit(limit)).all()
    measured = _measured_ranks(connection, [(row.system, row.job_id) for row in rows], ranks)
    return tuple(
        read_record(
            BoundJob, row, hosts=tuple(row.hosts), gpu_uuids=tuple(row.gpu_uuids), outcome=Outcome(row.outcome),
            cause=Cause(row.cause) if row.cause else None, failure=row.failure or "",
            measured=tuple(measured[row.system, row.job_id].values()),
        )
        for row in rows
    )  # fmt: skip


def _measured_ranks(
    connection: Connection, jobs: Sequence[tuple[str, str]], ranks: Sequence[int] | None
) -> dict[tuple[str, str], dict[int, MeasuredRank]]:
    measured: dict[tuple[str, str], dict[int, MeasuredRank]] = defaultdict(dict)
    for some in batches(jobs):
        query = select(MEASURED_RANKS).where(_is_of_some(some)).order_by(MEASURED_RANKS.c.rank)
        if ranks is not None and len(ranks) <= 500:
            query = query.where(MEASURED_RANKS.c.rank.in_(ranks))
        for row in connection.execute(query):
            measured[row.system, row.job_id][row.rank] = read_record(MeasuredRank, row)
    return measured


def _is_of_some(jobs: Sequence[tuple[str, str]]) -> ColumnElement[bool]:
    return tuple_(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id).in_(jobs)


def fullest_ranks(
    connection: Connection, jobs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """How many ranks told their device bytes, the most of them, and what was predicted for that rank."""
    fullest: dict[tuple[str, str], tuple[int, int, int]] = {}
    ranks = MEASURED_RANKS.c
    for some in batches(jobs):
        peaks = (
            select(ranks.system, ranks.job_id, func.max(ranks.device_bytes).label("most"), func.count().label("told"))
            .where(_is_of_some(some), ranks.device_bytes.is_not(None))
            .group_by(ranks.system, ranks.job_id)
            .subquery()
        )
        here: ColumnElement[bool] = and_(
            peaks.c.system == ranks.system, peaks.c.job_id == ranks.job_id, peaks.c.most == ranks.device_bytes
        )
        query = select(peaks, ranks.predicted_bytes).join(MEASURED_RANKS, here).order_by(ranks.rank)
        for row in connection.execute(query):
            fullest.setdefault((row.system, row.job_id), (row.told, row.most, row.predicted_bytes))
    return fullest
