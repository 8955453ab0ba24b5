"""The JSON of a job: what a PUT tells of it, why it ran out of memory, and how it is answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)

from planner.errors import PlannerError
from planner.report.statement import read_statement
from planner.service.history.job_changes import LONGEST_FAILURE, BoundJob, JobChange, MeasuredRank, Outcome, memory_of
from planner.service.history.store import History
from planner.service.http.body_readers import error_of_body
from planner.service.http.problems import RequestError
from planner.truth.failures.explanation import explain
from planner.truth.failures.messages import Cause, find_host_failures, find_messages

LONGEST_TEXT = 2**18
"""Characters of what may be told of an end: the last lines of a log."""


@dataclass(frozen=True, slots=True)
class ToldFailure:
    """What follows from the words. `ran_out` is False where the same words are said of other ends too."""

    cause: Cause | None
    words: str
    ran_out: bool


NOTHING_TOLD = ToldFailure(None, "", False)


def failure_of(text: str, messages: Sequence[str]) -> ToldFailure:
    """The cause that a text gives, or the messages of ranks; what torch said in a form that is not known is UNKNOWN.

    Raises RequestError (422) for a text in which nothing says that memory ran out.
    """
    if text:
        try:
            found = explain(text, place="failure")
        except PlannerError as error:
            raise RequestError(
                422, error.problem, allowed=error.allowed, remedy=error.remedy, place="failure"
            ) from None
        certain = bool(found.messages) or any(each.certain for each in found.host)
        return ToldFailure(found.cause if certain else None, _words(text) if certain else "", certain)
    if not messages:
        return NOTHING_TOLD
    said = "\n".join(messages)
    known = bool(find_messages(said) or find_host_failures(said))
    return ToldFailure(explain(said).cause if known else Cause.UNKNOWN, said[:LONGEST_FAILURE], True)


def beside_plan(history: History, job: BoundJob) -> list[str]:
    """In what the end of a job that ran out of GPU memory and its plan differ; empty where nothing was told."""
    if job.cause is None or job.cause.of_host or not job.failure:
        return []
    document = history.plans.document(job.plan_id)
    if document is None:
        return []
    try:
        return [each.sentence for each in explain(job.failure, plan=read_statement(document)).partings]
    except PlannerError:
        return []  # a plan of an earlier version, or words that this version does not know


def _words(text: str) -> str:
    """The lines that say it, as they were told."""
    lines = text.splitlines()
    places = [*(each.line for each in find_messages(text)), *(each.line for each in find_host_failures(text))]
    return "\n".join(lines[min(places) - 1 :])[:LONGEST_FAILURE]


MOST_RANKS = 4096
"""In one request; a larger job tells of its ranks in several."""
_SEEN_ITS_PEAK = 2
"""Iterations: the peak is in the first or second one."""
EXAMPLE: dict[str, Any] = {
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


def _read_moment(said: object) -> datetime | None:
    if said is None or said == "":
        return None
    if isinstance(said, datetime):
        return said
    return datetime.fromisoformat(said if isinstance(said, str) else "no text")


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
    out_of_memory: Any = None
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
    """What is newly known of a job, or the report of planner.truth.measuring.callback."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": EXAMPLE})
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


class BoundJobBody(BaseModel):
    """A job and the plan that was made for it. Of a PUT, `measured` holds the ranks that it told of."""

    model_config = ConfigDict(populate_by_name=True, from_attributes=True)
    schema_: str = Field("planner.bound_job/1", alias="schema")
    system: str
    id: str = Field(validation_alias=AliasChoices("id", "job_id"))
    plan_id: str
    team: str
    queue: str
    hosts: list[str]
    gpu_uuids: list[str]
    started_at: Moment
    ended_at: Moment
    outcome: str
    cause: str = ""
    """Why it ran out of memory; empty where it did not, or nobody told."""
    memory: str = ""
    """Whose memory that was: gpu or host."""
    failure: str = ""
    """The words from which that is known."""
    beside_plan: list[str] = []
    """Of one job that ran out of GPU memory: in what its end and its plan differ."""
    lapses_at: Moment = None
    measured: list[MeasuredRankBody]


def change_of(document: Mapping[str, Any], system: str, job_id: str) -> JobChange:
    """What the document says is new of the job. Raises RequestError (422) where it cannot be read."""
    try:
        body = JobBody.model_validate(document)
    except ValidationError as error:
        raise error_of_body(error, JobBody) from None
    _refuse_another_job(body, system, job_id)
    measured, ranks = body.measured or [], body.ranks or []
    if len(ranks) + len(measured) > MOST_RANKS:
        raise RequestError(422, "it tells of too many ranks at once", allowed=f"at most {MOST_RANKS}", place="measured")
    told = failure_of(body.failure or "", [str(each.out_of_memory) for each in ranks if each.out_of_memory])
    if body.outcome is Outcome.FINISHED:
        told = NOTHING_TOLD  # it caught the error, and went on
    return JobChange(
        plan_id=body.plan_id or None,
        team=body.team or None,
        queue=body.queue or None,
        # A rank that knows no host or GPU by name does not say that there is none.
        hosts=tuple(body.hosts or ()) or None,
        gpu_uuids=tuple(body.gpu_uuids or ()) or None,
        started_at=body.started_at,
        ended_at=body.ended_at,
        # Slurm says of an exception of torch's no more than that the job failed.
        outcome=Outcome.OUT_OF_MEMORY if told.ran_out else _outcome(body),
        cause=told.cause,
        failure=told.words,
        lease_seconds=body.lease_seconds,
        measured=(*(each.value() for each in measured), *(each.value() for each in ranks)),
        reports={each.rank: said for each, said in zip(ranks, document.get("ranks") or [], strict=True)},
    )


def job_document(job: BoundJob) -> BoundJobBody:
    """The job as it is answered."""
    cause = job.cause.value if job.cause is not None else ""
    fields = {each.name: getattr(job, each.name) for each in dataclasses.fields(job)}
    memory = memory_of(cause) if cause else ""
    return BoundJobBody.model_validate({**fields, "cause": cause, "memory": memory, "outcome": job.outcome.value})


def _refuse_another_job(body: JobBody, system: str, job_id: str) -> None:
    for name, said, here in (("system", body.system, system), ("id", body.id, job_id)):
        if said not in (None, here):
            raise RequestError(409, f"the body is of another job: {name} is {ascii(said)[:80]}", place=name)


def _outcome(body: JobBody) -> Outcome | None:
    if body.outcome is not None:
        return body.outcome or None
    ranks = body.ranks or []
    if any(each.out_of_memory for each in ranks):
        return Outcome.OUT_OF_MEMORY
    steps = [each.steps or 0 for each in ranks]
    # Of a job that ended before its peak nobody knows whether it would have fitted.
    return Outcome.FINISHED if body.ended_at and steps and min(steps) >= _SEEN_ITS_PEAK else None
