"""Stores and lists jobs by the id of the system that runs them; reads which plans are in use and what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, func, or_, select, tuple_, update

from planner.job.rank_sets import RankSet
from planner.report.statement import Verdict
from planner.service.history.database import Database, put_if_absent, upsert
from planner.service.history.errors import HistoryError, label
from planner.service.history.job_changes import (
    BoundJob,
    JobChange,
    MeasuredRank,
    Outcome,
    check_change,
    check_merged,
    count_failure,
    merge_failure,
)
from planner.service.history.plan_table import PlanSummary, RankClassSummary, plan_summary, rank_classes_of, summaries
from planner.service.history.schema import JOBS, MEASURED_RANKS, PLANS, VALIDATIONS, compact_json
from planner.truth.failures.messages import Cause


def is_open(now: datetime) -> ColumnElement[bool]:
    """A job that has not ended, and whose lease, if it has one, is not over."""
    return and_(JOBS.c.ended_at.is_(None), or_(JOBS.c.lapses_at.is_(None), JOBS.c.lapses_at > now))


def has_ended(now: datetime) -> ColumnElement[bool]:
    """A job whose end was told, or whose lease is over."""
    return or_(JOBS.c.ended_at.is_not(None), JOBS.c.lapses_at <= now)


def ended_since(moment: datetime, now: datetime) -> ColumnElement[bool]:
    """A job that ended at this moment or later; one whose end nobody told ended when its lease was over."""
    lapsed = and_(JOBS.c.ended_at.is_(None), JOBS.c.lapses_at <= now, JOBS.c.lapses_at >= moment)
    return or_(JOBS.c.ended_at >= moment, lapsed)


class Jobs:
    """What runs, and what it took."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._database, self._now = database, now

    def bind(self, system: str, job_id: str, change: JobChange) -> BoundJob:
        """Merge what is newly known into the job, and give it as it now is.

        The first change names the plan; telling the same again changes nothing. Of the peaks only those of the
        ranks in `change` are given back: a job may have thousands. Raises HistoryError for what cannot be.
        """
        check_change(system, job_id, change)
        with self._database.writing() as connection:
            before = self._lock_row(connection, system, job_id, change)
            plan_id = change.plan_id or before.plan_id
            world_size = _world_size(connection, plan_id)
            after = _merge_change(before, change, world_size, self._now()) | {"plan_id": plan_id}
            check_merged(change, world_size, after["started_at"], after["ended_at"])
            connection.execute(update(JOBS).where(_is(JOBS, system, job_id)).values(after))
            count_failure(connection, before, after, runs_again=_runs_again(before, change))
            told = {rank: MeasuredRank(rank=rank) for rank in change.reports}
            for each in change.measured:
                told[each.rank] = _higher(told.get(each.rank, each), each)
            # Another plan predicted other bytes, for every rank that was measured.
            ranks = list(told) if plan_id == before.plan_id else None
            known = _measured_ranks(connection, [(system, job_id)], ranks).get((system, job_id), {})
            if told or known:
                sets = _predictions(connection, plan_id)
                for rank in {**known, **told}:
                    peaks = _higher(known.get(rank, MeasuredRank(rank=rank)), told.get(rank, MeasuredRank(rank=rank)))
                    _put_rank(connection, system, job_id, peaks, sets, change.reports.get(rank))
            return _read_bound_jobs(connection, [_is(JOBS, system, job_id)], ranks=list(told))[0]

    def get(self, system: str, job_id: str) -> BoundJob | None:
        """The job; None if nothing was ever told of it."""
        with self._database.reading() as connection:
            found = _read_bound_jobs(connection, [_is(JOBS, label(system), label(job_id))])
        return found[0] if found else None

    def of_plan(self, plan_id: str) -> tuple[BoundJob, ...]:
        """All jobs that are bound to the plan, those told of last first."""
        with self._database.reading() as connection:
            return _read_bound_jobs(connection, [JOBS.c.plan_id == label(plan_id)])

    def open(self, limit: int = 1000) -> tuple[BoundJob, ...]:
        """At most `limit` jobs that have not ended, those told of last first."""
        with self._database.reading() as connection:
            return _read_bound_jobs(connection, [is_open(self._now())], limit)

    def reports(self, system: str, job_id: str) -> dict[int, Any]:
        """What the ranks of the job told beyond their peaks, by rank."""
        query = (
            select(MEASURED_RANKS.c.rank, MEASURED_RANKS.c.report)
            .where(_is(MEASURED_RANKS, label(system), label(job_id)))
            .order_by(MEASURED_RANKS.c.rank)
        )
        with self._database.reading() as connection:
            return {rank: json.loads(report) for rank, report in connection.execute(query) if report}

    def _lock_row(self, connection: Connection, system: str, job_id: str, change: JobChange) -> Row[Any]:
        """The job's row, which others cannot change until we are done; made if this is its first change."""
        here = select(JOBS).where(_is(JOBS, system, job_id)).with_for_update()
        found = connection.execute(here).one_or_none()
        if found is not None:
            return found
        if change.plan_id is None:
            raise HistoryError(
                f"job {job_id} of {system} is bound to no plan yet", remedy="name its plan first", place="plan_id"
            )
        named = select(PLANS.c.team, PLANS.c.queue).where(PLANS.c.plan_id == label(change.plan_id))
        plan = connection.execute(named.with_for_update(read=True)).one_or_none()
        if plan is None:
            raise _no_plan(change.plan_id)
        row = {
            "system": system, "job_id": job_id, "plan_id": change.plan_id, "team": plan.team, "queue": plan.queue,
            "hosts": [], "gpu_uuids": [], "outcome": "", "updated_at": self._now(),
        }  # fmt: skip
        put_if_absent(connection, JOBS, row)
        return connection.execute(here).one()


def jobs_of(connection: Connection, plan_ids: Sequence[str], now: datetime) -> dict[str, tuple[BoundJob, ...]]:
    """The jobs of some plans that have not ended, by plan."""
    found: dict[str, list[BoundJob]] = {}
    for job in _read_bound_jobs(connection, [JOBS.c.plan_id.in_(plan_ids), is_open(now)]):
        found.setdefault(job.plan_id, []).append(job)
    return {plan_id: tuple(jobs) for plan_id, jobs in found.items()}


def _merge_change(before: Row[Any], change: JobChange, world_size: int, now: datetime) -> dict[str, Any]:
    runs_again = _runs_again(before, change)
    starts = [change.started_at] if runs_again else [before.started_at, change.started_at]
    ends = [change.ended_at] if runs_again else [before.ended_at, change.ended_at]
    outcome = _worse(Outcome.OPEN if runs_again else Outcome(before.outcome), change.outcome or Outcome.OPEN)
    told_end = max((moment for moment in ends if moment is not None), default=None)
    ended_at = now if told_end is None and outcome is not Outcome.OPEN else told_end
    return {
        "team": before.team if change.team is None else change.team,
        "queue": before.queue if change.queue is None else change.queue,
        "hosts": _unite_names(before.hosts, change.hosts, world_size),
        "gpu_uuids": _unite_names(before.gpu_uuids, change.gpu_uuids, world_size),
        "started_at": min((moment for moment in starts if moment is not None), default=None),
        "ended_at": ended_at,
        "outcome": outcome.value,
        "updated_at": now,
        "lapses_at": None if ended_at is not None else _lapses_at(before.lapses_at, change, now),
        **merge_failure(before, change, runs_again=runs_again),
    }


def _runs_again(before: Row[Any], change: JobChange) -> bool:
    """A start after the end says so, and a lease of a job that ended."""
    if before.ended_at is None or change.outcome is not None:
        return False
    if change.started_at is not None and change.started_at > before.ended_at:
        return True
    return change.lease_seconds is not None and change.ended_at is None


def _lapses_at(before: datetime | None, change: JobChange, now: datetime) -> datetime | None:
    if change.lease_seconds is None:
        return before
    until = now + timedelta(seconds=change.lease_seconds)
    return until if before is None else max(before, until)


def _worse(*outcomes: Outcome) -> Outcome:
    return max(outcomes, key=list(Outcome).index)


def _unite_names(before: Sequence[str], told: Sequence[str] | None, most: int) -> list[str]:
    """Whoever tells all of them says their order; one rank tells of itself. More than the job has: it has moved."""
    if told is None or set(told) <= set(before):
        return list(before)
    missing = [] if set(before) <= set(told) else [name for name in before if name not in told]
    return list(told) if len(missing) + len(told) > most else [*missing, *told]


def _world_size(connection: Connection, plan_id: str) -> int:
    """The ranks of a plan, which nobody deletes until we are done."""
    query = select(PLANS.c.ranks).where(PLANS.c.plan_id == plan_id).with_for_update(read=True)
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        raise _no_plan(plan_id)
    return int(found)


def _predictions(connection: Connection, plan_id: str) -> list[tuple[RankSet, int]]:
    """The device bytes that the plan said, by ranks."""
    classes = rank_classes_of(connection, [plan_id]).get(plan_id, ())
    return [(RankSet.parse(each.ranks), each.device_bytes) for each in classes]


def _put_rank(
    connection: Connection,
    system: str,
    job_id: str,
    peaks: MeasuredRank,
    predictions: Sequence[tuple[RankSet, int]],
    report: Mapping[str, Any] | None,
) -> None:
    """A rank's peaks beside the device bytes that were predicted for it, so that sums can be set side by side."""
    row = {name: getattr(peaks, name) for name in MeasuredRank.__dataclass_fields__}
    row |= {"system": system, "job_id": job_id}
    row["predicted_bytes"] = next((device for ranks, device in predictions if peaks.rank in ranks), 0)
    kept = row if report is None else row | {"report": compact_json(report)}
    statement = upsert(connection, MEASURED_RANKS, {"report": "", **kept})
    keys = ["system", "job_id", "rank"]
    changes = {name: value for name, value in kept.items() if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))


def _higher(before: MeasuredRank, now: MeasuredRank) -> MeasuredRank:
    """A peak only rises: reports may come late, twice, and in any order."""
    return MeasuredRank(
        rank=now.rank,
        host=now.host or before.host,
        gpu_uuid=now.gpu_uuid or before.gpu_uuid,
        allocated_bytes=_most(before.allocated_bytes, now.allocated_bytes),
        reserved_bytes=_most(before.reserved_bytes, now.reserved_bytes),
        device_bytes=_most(before.device_bytes, now.device_bytes),
    )


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


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
    return tuple(_job(row, list(measured.get((row.system, row.job_id), {}).values())) for row in rows)


def _measured_ranks(
    connection: Connection, jobs: Sequence[tuple[str, str]], ranks: Sequence[int] | None
) -> dict[tuple[str, str], dict[int, MeasuredRank]]:
    found: dict[tuple[str, str], dict[int, MeasuredRank]] = {}
    columns = [MEASURED_RANKS.c[name] for name in ("system", "job_id", *MeasuredRank.__dataclass_fields__)]
    for start in range(0, len(jobs), 500):  # as many as any database takes as parameters of one query
        some = tuple_(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id).in_(jobs[start : start + 500])
        query = select(*columns).where(some).order_by(MEASURED_RANKS.c.rank)
        if ranks is not None and len(ranks) <= 500:
            query = query.where(MEASURED_RANKS.c.rank.in_(ranks))
        for row in connection.execute(query):
            found.setdefault((row.system, row.job_id), {})[row.rank] = _measured_rank(row)
    return found


def _job(row: Row[Any], measured: Sequence[MeasuredRank]) -> BoundJob:
    return BoundJob(
        system=row.system, job_id=row.job_id, plan_id=row.plan_id, team=row.team, queue=row.queue,
        hosts=tuple(row.hosts), gpu_uuids=tuple(row.gpu_uuids), started_at=row.started_at, ended_at=row.ended_at,
        outcome=Outcome(row.outcome), measured=tuple(measured), lapses_at=row.lapses_at,
        cause=Cause(row.cause) if row.cause else None, failure=row.failure or "",
    )  # fmt: skip


def _measured_rank(row: Row[Any]) -> MeasuredRank:
    return MeasuredRank(**{name: getattr(row, name) for name in MeasuredRank.__dataclass_fields__})


def _is(table: Any, system: str, job_id: str) -> ColumnElement[bool]:
    return and_(table.c.system == system, table.c.job_id == job_id)


def _no_plan(plan_id: str) -> HistoryError:
    return HistoryError(f"there is no plan {label(plan_id)!a}", remedy="plan the job first", place="plan_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job in a list. Bytes are those of the rank that told the most device bytes; None where none told any."""

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
    outcome: Outcome
    cause: str
    """Why it ran out of memory; empty where it did not, or nobody told."""
    measured_ranks: int
    measured_bytes: int | None
    predicted_bytes: int | None


def list_jobs(database: Database, limit: int, plan_id: str | None = None) -> tuple[JobSummary, ...]:
    """At most `limit` jobs, those told of last first; of one plan, or of all."""
    query = (
        select(JOBS, PLANS.c.name, PLANS.c.gpu, PLANS.c.ranks, PLANS.c.verdict)
        .join(PLANS, PLANS.c.plan_id == JOBS.c.plan_id)
        .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    if plan_id is not None:
        query = query.where(JOBS.c.plan_id == label(plan_id))
    with database.reading() as connection:
        rows = connection.execute(query).all()
        fullest = _fullest_ranks(connection, [(row.system, row.job_id) for row in rows])
    found = []
    for row in rows:
        count, measured, predicted = fullest.get((row.system, row.job_id), (0, None, None))
        summary = JobSummary(
            system=row.system, job_id=row.job_id, plan_id=row.plan_id, name=row.name, team=row.team, queue=row.queue,
            gpu=row.gpu, ranks=row.ranks, verdict=Verdict(row.verdict), started_at=row.started_at,
            ended_at=row.ended_at, updated_at=row.updated_at, outcome=Outcome(row.outcome), measured_ranks=count,
            measured_bytes=measured, predicted_bytes=predicted, cause=row.cause or "",
        )  # fmt: skip
        found.append(summary)
    return tuple(found)


def _fullest_ranks(
    connection: Connection, jobs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """How many ranks told their device bytes, the most of them, and what was predicted for that rank."""
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for start in range(0, len(jobs), 500):  # as many as any database takes as parameters of one query
        some = tuple_(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id).in_(jobs[start : start + 500])
        told = MEASURED_RANKS.c.device_bytes.is_not(None)
        peaks = (
            select(
                MEASURED_RANKS.c.system,
                MEASURED_RANKS.c.job_id,
                func.max(MEASURED_RANKS.c.device_bytes).label("most"),
                func.count().label("told"),
            )
            .where(some, told)
            .group_by(MEASURED_RANKS.c.system, MEASURED_RANKS.c.job_id)
            .subquery()
        )
        here: ColumnElement[bool] = and_(
            peaks.c.system == MEASURED_RANKS.c.system,
            peaks.c.job_id == MEASURED_RANKS.c.job_id,
            peaks.c.most == MEASURED_RANKS.c.device_bytes,
        )
        query = select(
            peaks, MEASURED_RANKS.c.predicted_bytes
        ).join(MEASURED_RANKS, here).order_by(MEASURED_RANKS.c.rank)  # fmt: skip
        for row in connection.execute(query):
            found.setdefault((row.system, row.job_id), (row.told, row.most, row.predicted_bytes))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlan:
    """A plan, its rank classes, and the jobs bound to it that have not ended."""

    summary: PlanSummary
    rank_classes: tuple[RankClassSummary, ...]
    jobs: tuple[BoundJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePlans:
    """The chosen plans, and how many were left out."""

    plans: tuple[ActivePlan, ...]
    left_out: int


def active_plans(database: Database, limit: int, since: datetime, now: datetime) -> ActivePlans:
    """At most `limit` plans: those of jobs that have not ended, then those asked for `since`; each newest first."""
    has_job = PLANS.c.plan_id.in_(select(JOBS.c.plan_id).where(is_open(now)))
    recent = and_(~has_job, PLANS.c.used_at >= since)
    with database.reading() as connection:
        count = connection.execute(select(func.count()).select_from(PLANS).where(or_(has_job, recent))).scalar_one()
        ids: list[str] = []
        for kind in (has_job, recent):  # one after the other: each is found along an index, without sorting all
            query = select(PLANS.c.plan_id).where(kind).order_by(PLANS.c.stored_at.desc(), PLANS.c.plan_id)
            ids += connection.execute(query.limit(limit - len(ids))).scalars()
        rows = connection.execute(summaries().where(PLANS.c.plan_id.in_(ids))).all()
        chosen = sorted((plan_summary(row) for row in rows), key=lambda plan: ids.index(plan.plan_id))
        classes, jobs = rank_classes_of(connection, ids), jobs_of(connection, ids, now)
    return ActivePlans(
        plans=tuple(
            ActivePlan(summary=plan, rank_classes=classes.get(plan.plan_id, ()), jobs=jobs.get(plan.plan_id, ()))
            for plan in chosen
        ),
        left_out=count - len(chosen),
    )


NO_GPU = "cpu"
"""What stands in the place of the GPU of a validation that ran on a CPU."""


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job of which some rank has reported what it took; when that, or anything else of it, was told last."""

    system: str
    job_id: str
    updated_at: datetime


def measured_jobs(database: Database, limit: int) -> tuple[MeasuredJob, ...]:
    """At most `limit` jobs, those told of last first."""
    here = (MEASURED_RANKS.c.system == JOBS.c.system) & (MEASURED_RANKS.c.job_id == JOBS.c.job_id)
    reported = exists().where(here, MEASURED_RANKS.c.reserved_bytes.is_not(None))
    query = (
        select(JOBS.c.system, JOBS.c.job_id, JOBS.c.updated_at)
        .where(reported)
        .order_by(JOBS.c.updated_at.desc(), JOBS.c.system, JOBS.c.job_id)
        .limit(limit)
    )
    with database.reading() as connection:
        return tuple(MeasuredJob(*row) for row in connection.execute(query))


def measured_validations(database: Database, limit: int) -> tuple[str, ...]:
    """The ids of at most `limit` validations that measured on a GPU to the end, newest first."""
    query = (
        select(VALIDATIONS.c.validation_id)
        .where(VALIDATIONS.c.state == "done", VALIDATIONS.c.gpu.not_in(("", NO_GPU)))
        .order_by(VALIDATIONS.c.asked_at.desc(), VALIDATIONS.c.validation_id)
        .limit(limit)
    )
    with database.reading() as connection:
        return tuple(connection.execute(query).scalars())
