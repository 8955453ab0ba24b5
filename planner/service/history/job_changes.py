"""A stored job, the changes that are reported of it, and the checks that a change has to pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row

from planner.service.history.counters import add
from planner.service.history.errors import HistoryError, checked_label, checked_name
from planner.service.history.schema import compact_json
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
"""Seconds: whoever tells of a job less often than that does not need one."""
LONGEST_REPORT = 2**18
LONGEST_FAILURE = 2**12
_SYSTEM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def check_change(system: str, job_id: str, change: JobChange) -> None:
    if not _SYSTEM.fullmatch(system):
        raise HistoryError(
            f"{system[:63]!a} is no name of a system", allowed="such as slurm, ray, kubernetes", place="system"
        )
    checked_name(job_id, "id")
    for name in ("plan_id", "team", "queue"):
        checked_label(getattr(change, name) or "", name)
    for name in ("hosts", "gpu_uuids"):
        for value in getattr(change, name) or ():
            checked_name(value, name)
    for name, moment in (("started_at", change.started_at), ("ended_at", change.ended_at)):
        if moment is not None and moment.tzinfo is None:
            raise HistoryError(
                f"{moment.isoformat()} has no time zone", allowed="such as 2026-01-31T12:00:00Z", place=name
            )
        if moment is not None and not FIRST_MOMENT <= moment <= LAST_MOMENT:
            raise HistoryError(
                f"nothing ran at {moment.isoformat()}",
                allowed=f"{FIRST_MOMENT:%Y-%m-%d} to {LAST_MOMENT:%Y-%m-%d}",
                place=name,
            )
    if change.lease_seconds is not None and not 0 < change.lease_seconds <= LONGEST_LEASE:
        raise HistoryError(
            f"a lease of {change.lease_seconds} s",
            allowed=f"more than 0, at most {LONGEST_LEASE}",
            place="lease_seconds",
        )
    if len(change.failure) > LONGEST_FAILURE or "\0" in change.failure:
        raise HistoryError(
            f"{len(change.failure)} characters of failure",
            allowed=f"at most {LONGEST_FAILURE}, no NUL",
            place="failure",
        )
    for peaks in change.measured:
        checked_label(peaks.host, "measured.host")
        checked_label(peaks.gpu_uuid, "measured.gpu_uuid")
        for name in PEAKS:
            count = getattr(peaks, name)
            if count is not None and not 0 <= count <= MOST_BYTES:
                raise HistoryError(f"{count} bytes", allowed=f"0 to {MOST_BYTES}", place=f"measured.{name}")
    for report in change.reports.values():
        if (length := len(compact_json(report))) > LONGEST_REPORT:
            raise HistoryError(f"{length} characters", allowed=f"at most {LONGEST_REPORT}", place="measured.report")


def check_merged(change: JobChange, world_size: int, started_at: datetime | None, ended_at: datetime | None) -> None:
    """Raises HistoryError for what this job, of `world_size` ranks, cannot have."""
    if started_at is not None and ended_at is not None and ended_at < started_at:
        raise HistoryError(
            f"the job would end at {ended_at.isoformat()}, before its start at {started_at.isoformat()}",
            place="ended_at",
        )
    for name, names in (("hosts", change.hosts or ()), ("gpu_uuids", change.gpu_uuids or ())):
        if len(names) > world_size:
            raise HistoryError(f"{len(names)} of them", allowed=f"{world_size}, by the plan", place=name)
    for rank in [*(peaks.rank for peaks in change.measured), *change.reports]:
        if not 0 <= rank < world_size:
            raise HistoryError(f"rank {rank}", allowed=f"0 to {world_size - 1}, by the plan", place="measured.rank")


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
        return {"cause": change.cause.value, "failure": change.failure or failure}
    return {"cause": cause, "failure": failure}


def count_failure(connection: Connection, before: Row[Any], after: dict[str, Any], *, runs_again: bool) -> None:
    """Counts an end out of memory once, when it is first told, by the cause that is known then."""
    ran_out = after["outcome"] == Outcome.OUT_OF_MEMORY.value
    if not ran_out or (before.outcome == Outcome.OUT_OF_MEMORY.value and not runs_again):
        return
    memory, cause = memory_of(after["cause"]), after["cause"] or NOT_TOLD
    add(connection, {(OUT_OF_MEMORY, (("cause", cause), ("memory", memory))): 1})


def memory_of(cause: str | None) -> str:
    """`gpu` or `host`; `not_told` where no cause is known."""
    if cause is None:
        return NOT_TOLD
    return "host" if Cause(cause).of_host else "gpu"
