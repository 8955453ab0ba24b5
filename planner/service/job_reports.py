"""Reads a job's binding or its callback's report from the JSON of a PUT.

Every value is checked here for its type and said by its place; what it may mean is checked by the history.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from planner.history.job_values import BoundJob, JobChange, MeasuredRank, Outcome
from planner.service import openapi_models
from planner.service.problems import RequestError

SCHEMA = "planner.job/1"
MOST_RANKS = 4096
"""In one request; a larger job tells of its ranks in several."""
_COMMON = (
    "schema", "system", "id", "plan_id", "team", "queue", "hosts", "gpu_uuids", "started_at", "ended_at",
    "lease_seconds",
)  # fmt: skip
_PLAN_ID = re.compile(r"pl-[a-z2-7]{26}")
_BYTES = ("allocated_bytes", "reserved_bytes", "device_bytes")
_SEEN_ITS_PEAK = 2
"""Iterations: the peak is in the first or second one."""


def change_of(document: Mapping[str, Any], system: str, job_id: str) -> JobChange:
    """What the document says is new of the job. Raises RequestError (422) where it cannot be read."""
    _refuse_other_keys(document, (*_COMMON, "outcome", "measured", "ranks"), "")
    if document.get("schema", SCHEMA) != SCHEMA:
        raise _wrong("schema", document["schema"], SCHEMA)
    for name, here in (("system", system), ("id", job_id)):
        if document.get(name, here) != here:
            raise RequestError(
                409, f"the body is of another job: {name} is {_format_value(document[name])}", place=name
            )
    ranks = [_object(each, f"ranks[{index}]") for index, each in enumerate(_list(document, "ranks"))]
    measured = [
        _read_measured_rank(each, f"measured[{index}]") for index, each in enumerate(_list(document, "measured"))
    ]
    if len(ranks) + len(measured) > MOST_RANKS:
        raise RequestError(422, "it tells of too many ranks at once", allowed=f"at most {MOST_RANKS}", place="measured")
    ended_at = _moment(document, "ended_at")
    return JobChange(
        plan_id=_plan_id(document),
        team=_text(document, "team") or None,
        queue=_text(document, "queue") or None,
        hosts=_texts(document, "hosts"),
        gpu_uuids=_texts(document, "gpu_uuids"),
        started_at=_moment(document, "started_at"),
        ended_at=ended_at,
        outcome=_outcome(document, ranks, ended=ended_at is not None),
        lease_seconds=_whole(document, "lease_seconds"),
        measured=(*measured, *(_read_callback_report(each, f"ranks[{index}]") for index, each in enumerate(ranks))),
        reports={_whole(each, "rank", f"ranks[{index}].") or 0: each for index, each in enumerate(ranks)},
    )


def job_document(job: BoundJob) -> openapi_models.BoundJob:
    """The job as it is answered."""
    return openapi_models.BoundJob(
        schema="planner.bound_job/1",
        system=job.system,
        id=job.job_id,
        plan_id=job.plan_id,
        team=job.team,
        queue=job.queue,
        hosts=list(job.hosts),
        gpu_uuids=list(job.gpu_uuids),
        started_at=job.started_at.isoformat() if job.started_at else None,
        ended_at=job.ended_at.isoformat() if job.ended_at else None,
        outcome=job.outcome.value,
        lapses_at=job.lapses_at.isoformat() if job.lapses_at else None,
        measured=[
            openapi_models.MeasuredRank(
                rank=each.rank, host=each.host, gpu_uuid=each.gpu_uuid, allocated_bytes=each.allocated_bytes,
                reserved_bytes=each.reserved_bytes, device_bytes=each.device_bytes,
            )
            for each in job.measured
        ],
    )  # fmt: skip


def _read_measured_rank(given: Any, place: str) -> MeasuredRank:
    rank = _object(given, place)
    _refuse_other_keys(rank, ("rank", "host", "gpu_uuid", *_BYTES), f"{place}.")
    counts = {name: _whole(rank, name, f"{place}.") for name in _BYTES}
    return MeasuredRank(
        rank=_rank(rank, place),
        host=_text(rank, "host", f"{place}.") or "",
        gpu_uuid=_text(rank, "gpu_uuid", f"{place}.") or "",
        **counts,
    )


def _read_callback_report(rank: Mapping[str, Any], place: str) -> MeasuredRank:
    """The peaks in a report of the callback. What is in use on the whole device says nothing of this job."""
    peak = _object(rank.get("peak", {}), f"{place}.peak")
    gpu = _object(rank.get("gpu", {}), f"{place}.gpu")
    own = rank.get("device_bytes_by") == "process"
    return MeasuredRank(
        rank=_rank(rank, place),
        host=_text(rank, "host", f"{place}.") or "",
        gpu_uuid=_text(gpu, "uuid", f"{place}.gpu.") or "",
        allocated_bytes=_whole(peak, "allocated_bytes", f"{place}.peak."),
        reserved_bytes=_whole(peak, "reserved_bytes", f"{place}.peak."),
        device_bytes=_whole(rank, "device_bytes", f"{place}.") or None if own else None,
    )


def _outcome(document: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], *, ended: bool) -> Outcome | None:
    said = _text(document, "outcome")
    if said is not None:
        if said not in list(Outcome):
            raise _wrong("outcome", said, ", ".join(each.value for each in Outcome if each.value))
        return Outcome(said) if said else None
    if any(each.get("out_of_memory") for each in ranks):
        return Outcome.OUT_OF_MEMORY
    steps = [_whole(each, "steps", f"ranks[{index}].") or 0 for index, each in enumerate(ranks)]
    # Of a job that ended before its peak nobody knows whether it would have fitted.
    return Outcome.FINISHED if ended and steps and min(steps) >= _SEEN_ITS_PEAK else None


def _plan_id(document: Mapping[str, Any]) -> str | None:
    said = _text(document, "plan_id")
    if said and not _PLAN_ID.fullmatch(said):
        raise _wrong("plan_id", said, "pl- and 26 letters and digits")
    return said or None


def _rank(given: Mapping[str, Any], place: str) -> int:
    rank = _whole(given, "rank", f"{place}.")
    if rank is None:
        raise RequestError(422, "the rank is missing", allowed="a whole number from 0", place=f"{place}.rank")
    return rank


def _whole(given: Mapping[str, Any], name: str, place: str = "") -> int | None:
    value = given.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62):
        return value
    raise _wrong(f"{place}{name}", value, "a whole number")


def _text(given: Mapping[str, Any], name: str, place: str = "") -> str | None:
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _wrong(f"{place}{name}", value, "a text")


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """None also of an empty list: a rank that knows no GPU's name does not say that there is none."""
    values = _list(given, name)
    for value in values:
        if not isinstance(value, str):
            raise _wrong(name, value, "a list of texts")
    return tuple(values) or None


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise _wrong(name, value, "a list")


def _object(value: Any, place: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise _wrong(place, value, "an object")


def _moment(given: Mapping[str, Any], name: str) -> datetime | None:
    said = _text(given, name)
    if not said:
        return None
    try:
        return datetime.fromisoformat(said)
    except ValueError:
        raise _wrong(name, said, "such as 2026-01-31T12:00:00Z") from None


def _refuse_other_keys(given: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for name in given:
        if name not in known:
            raise RequestError(
                422, f"there is no key {_format_value(name)}", allowed=", ".join(known), place=place + name[:60]
            )


def _wrong(place: str, value: Any, allowed: str) -> RequestError:
    return RequestError(422, f"{place} is {_format_value(value)}", allowed=allowed, place=place)


def _format_value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."
