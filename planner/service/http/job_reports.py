"""Reads what a PUT tells of a job: its ends, and the peaks of its ranks, also as the callback reports them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema

from planner.errors import PlannerError
from planner.service.history.job_table import LONGEST_FAILURE, JobChange, MeasuredRank, Outcome
from planner.service.http.body_readers import explain_body_error, read_object
from planner.service.http.problems import RequestError
from planner.truth.failures.explanation import explain
from planner.truth.failures.messages import Cause

LONGEST_TEXT = 2**18
"""Characters of the text on a job's end: the last lines of a log."""


MOST_RANKS = 4096
"""In one request; a larger job tells of its ranks in several."""
_SEEN_ITS_PEAK = 2
"""Iterations: the peak is in the first or second one."""
JOB_EXAMPLE: dict[str, Any] = {
    "plan_id": "pl-aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "team": "nlp",
    "queue": "h100",
    "hosts": ["node-17"],
    "gpu_uuids": ["GPU-5c2b8b1e-0000-0000-0000-000000000000"],
    "started_at": "2026-01-02T03:04:05Z",
    "ended_at": None,
    "outcome": "",
    "measured": [{"rank": 0, "allocated_bytes": 1048576, "reserved_bytes": 2097152, "device_bytes": None}],
}


def _read_moment(given: object) -> datetime | None:
    if given is None or given == "":
        return None
    if isinstance(given, datetime):
        return given
    return datetime.fromisoformat(given if isinstance(given, str) else "no text")


Whole = Annotated[int, Field(gt=-(2**62), lt=2**62)]
Moment = Annotated[
    datetime | None,
    BeforeValidator(_read_moment, json_schema_input_type=str),
    PlainSerializer(lambda moment: moment.isoformat() if moment else None),
    WithJsonSchema({"type": ["string", "null"], "format": "date-time"}),
]


class MeasuredRankBody(BaseModel):
    """The peaks that one rank saw; null is not measured."""

    model_config = ConfigDict(extra="forbid", strict=True, from_attributes=True)
    rank: Whole
    host: str | None = ""
    gpu_uuid: str | None = ""
    allocated_bytes: Whole | None = None
    reserved_bytes: Whole | None = None
    device_bytes: Whole | None = None

    def value(self) -> MeasuredRank:
        return MeasuredRank(**self.model_dump() | {"host": self.host or "", "gpu_uuid": self.gpu_uuid or ""})


class _CallbackPeak(BaseModel):
    model_config = ConfigDict(strict=True)
    allocated_bytes: Whole | None = None
    reserved_bytes: Whole | None = None


class _CallbackGpu(BaseModel):
    model_config = ConfigDict(strict=True)
    uuid: str | None = None


class CallbackRankBody(BaseModel):
    """What the callback tells of its rank (docs/python.md); only what is read here is checked."""

    model_config = ConfigDict(strict=True)
    rank: Whole
    host: str | None = None
    gpu: _CallbackGpu = _CallbackGpu()
    peak: _CallbackPeak = _CallbackPeak()
    device_bytes: Whole | None = None
    device_bytes_by: Any = None
    out_of_memory: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = None
    steps: Whole | None = None

    def value(self) -> MeasuredRank:
        """The peaks. What is in use on the whole device says nothing of this job."""
        own = self.device_bytes_by == "process"
        return MeasuredRank(
            rank=self.rank,
            host=self.host or "",
            gpu_uuid=self.gpu.uuid or "",
            allocated_bytes=self.peak.allocated_bytes,
            reserved_bytes=self.peak.reserved_bytes,
            device_bytes=self.device_bytes or None if own else None,
        )


class JobBody(BaseModel):
    """What is newly known of a job, or the report of planner.truth.measuring.memory_report."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": JOB_EXAMPLE})
    schema_: Literal["planner.job/1"] = Field("planner.job/1", alias="schema")
    system: str | None = None
    id: str | None = None
    plan_id: Annotated[str, Field(pattern=r"^(pl-[a-z2-7]{26})?$")] | None = None
    team: str | None = None
    queue: str | None = None
    hosts: list[str] | None = None
    gpu_uuids: list[str] | None = None
    started_at: Moment = None
    ended_at: Moment = None
    outcome: Annotated[Outcome, Field(strict=False)] | None = None
    failure: Annotated[str, Field(max_length=LONGEST_TEXT)] | None = None
    """What was said at its end: torch's message, lines of Slurm, Kubernetes or the kernel; it tells the cause."""
    lease_seconds: Whole | None = None
    """Without a further word the job counts as ended after so many seconds."""
    measured: list[MeasuredRankBody] | None = None
    ranks: list[CallbackRankBody] | None = None


def read_change(body: bytes, whose: str) -> JobChange:
    """What a body says is new of a job; `whose` is the JSON array of its system and its id. Raises RequestError."""
    system, job_id = json.loads(whose)
    return build_change(read_object(body), system, job_id)


def build_change(document: Mapping[str, Any], system: str, job_id: str) -> JobChange:
    """What the document says is new of the job. Raises RequestError (422) where it cannot be read."""
    try:
        body = JobBody.model_validate(document)
    except ValidationError as error:
        raise explain_body_error(error, JobBody) from None
    for name, given, here in (("system", body.system, system), ("id", body.id, job_id)):
        if given not in (None, here):
            raise RequestError(409, f"the body is of another job: {name} is {ascii(given)[:80]}", place=name)
    measured, ranks = body.measured or [], body.ranks or []
    if len(ranks) + len(measured) > MOST_RANKS:
        raise RequestError(422, "it tells of too many ranks at once", allowed=f"at most {MOST_RANKS}", place="measured")
    failure = _read_failure(body.failure or "", [rank.out_of_memory for rank in ranks if rank.out_of_memory])
    if body.outcome is Outcome.FINISHED:
        failure = None  # it caught the error, and went on
    # Slurm says of an exception of torch's no more than that the job failed.
    outcome = body.outcome or None if failure is None else Outcome.OUT_OF_MEMORY
    if failure is None and body.outcome is None:
        steps = [rank.steps or 0 for rank in ranks]
        if any(rank.out_of_memory for rank in ranks):
            outcome = Outcome.OUT_OF_MEMORY
        elif body.ended_at and steps and min(steps) >= _SEEN_ITS_PEAK:
            # Of a job that ended before its peak nobody knows whether it would have fitted.
            outcome = Outcome.FINISHED
    cause, words = failure or (None, "")
    return JobChange(
        plan_id=body.plan_id or None,
        team=body.team or None,
        queue=body.queue or None,
        # A rank that knows no host or GPU by name does not say that there is none.
        hosts=tuple(body.hosts or ()) or None,
        gpu_uuids=tuple(body.gpu_uuids or ()) or None,
        started_at=body.started_at,
        ended_at=body.ended_at,
        outcome=outcome,
        cause=cause,
        failure=words,
        lease_seconds=body.lease_seconds,
        measured=(*(rank.value() for rank in measured), *(rank.value() for rank in ranks)),
        reports={rank.rank: report for rank, report in zip(ranks, document.get("ranks") or [], strict=True)},
    )


def _read_failure(text: str, messages: Sequence[str]) -> tuple[Cause | None, str] | None:
    """The cause that a text gives, or the messages of ranks, and the words that say it; None where nothing was told,
    or the same is said of other ends too. What torch said in a form that is not known is UNKNOWN.

    Raises RequestError (422) for a text in which nothing says that memory ran out.
    """
    if text:
        try:
            explained = explain(text, place="failure")
        except PlannerError as error:
            raise RequestError(
                422, error.problem, allowed=error.allowed, remedy=error.remedy, place="failure"
            ) from None
        if not explained.messages and not any(message.certain for message in explained.host):
            return None
        places = [message.line for message, *_ in explained.messages] + [failure.line for failure in explained.host]
        return explained.cause, "\n".join(text.splitlines()[min(places) - 1 :])[:LONGEST_FAILURE]
    if not messages:
        return None
    words = "\n".join(messages)[:LONGEST_TEXT]
    try:
        cause = explain(words).cause
    except PlannerError:
        cause = Cause.UNKNOWN
    return cause, words[:LONGEST_FAILURE]
