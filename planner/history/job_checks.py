"""Checks a job's change, so that a wrong report is an error and not a broken join."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from planner.history.columns import compact_json
from planner.history.history_errors import HistoryError
from planner.history.job_values import JobChange, MeasuredRank
from planner.history.names import checked_label, checked_name

MOST_BYTES = 2**42
"""4 TiB: no GPU has as much, and the sum over the ranks of the largest job (job/size_limits.py) fits into a column."""
FIRST_MOMENT, LAST_MOMENT = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Between which jobs run. The year 1 in another time zone can be written, and never be read again."""
LONGEST_LEASE = 24 * 60 * 60
"""Seconds: whoever tells of a job less often than that does not need one."""
LONGEST_REPORT = 2**18
"""Characters of what a rank tells beyond its peaks."""
LONGEST_FAILURE = 2**12
"""Characters of the words in which a job's end was told."""
_SYSTEM = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def check_change(system: str, job_id: str, change: JobChange) -> None:
    """Raises HistoryError for what no job can have."""
    if not _SYSTEM.fullmatch(system):
        raise HistoryError(
            f"{system[:63]!a} is no name of a system", allowed="such as slurm, ray, kubernetes", place="system"
        )
    checked_name(job_id, "id")
    checked_label(change.plan_id or "", "plan_id")
    checked_label(change.team or "", "team")
    checked_label(change.queue or "", "queue")
    for host in change.hosts or ():
        checked_name(host, "hosts")
    for uuid in change.gpu_uuids or ():
        checked_name(uuid, "gpu_uuids")
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
    for each in change.measured:
        _check_measured(each)
    for report in change.reports.values():
        _check_report(report)


def check_merged(change: JobChange, world_size: int, started_at: datetime | None, ended_at: datetime | None) -> None:
    """Raises HistoryError for what this job, of `world_size` ranks, cannot have."""
    if started_at is not None and ended_at is not None and ended_at < started_at:
        raise HistoryError(
            f"the job would end at {ended_at.isoformat()}, before its start at {started_at.isoformat()}",
            place="ended_at",
        )
    for name, told in (("hosts", change.hosts or ()), ("gpu_uuids", change.gpu_uuids or ())):
        if len(told) > world_size:
            raise HistoryError(f"{len(told)} of them", allowed=f"{world_size}, by the plan", place=name)
    for rank in [*(each.rank for each in change.measured), *change.reports]:
        if not 0 <= rank < world_size:
            raise HistoryError(f"rank {rank}", allowed=f"0 to {world_size - 1}, by the plan", place="measured.rank")


def _check_measured(measured: MeasuredRank) -> None:
    checked_label(measured.host, "measured.host")
    checked_label(measured.gpu_uuid, "measured.gpu_uuid")
    for name in ("allocated_bytes", "reserved_bytes", "device_bytes"):
        count = getattr(measured, name)
        if count is not None and not 0 <= count <= MOST_BYTES:
            raise HistoryError(f"{count} bytes", allowed=f"0 to {MOST_BYTES}", place=f"measured.{name}")


def _check_report(report: Mapping[str, Any]) -> None:
    length = len(compact_json(report))
    if length > LONGEST_REPORT:
        raise HistoryError(f"{length} characters", allowed=f"at most {LONGEST_REPORT}", place="measured.report")
