"""What OpenAPI says of requests and answers. What is asked is read by planner.job, whose errors say more."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.report.statement import Verdict
from planner.service.job_bodies import EXAMPLE as JOB_EXAMPLE
from planner.service.job_bodies import BoundJobBody


class Problem(BaseModel):
    """RFC 9457, with what a person needs to go on."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:planner:problem:spec",
                "title": "Unprocessable Content",
                "status": 422,
                "detail": "the body: train.precision is bf16\n  allowed: none, bf16_autocast, fp16_autocast",
                "problem": "train.precision is bf16",
                "allowed": "none, bf16_autocast, fp16_autocast",
                "place": "the body",
            }
        }
    )
    type: str
    title: str
    status: int
    detail: str
    problem: str = ""
    allowed: str = ""
    remedy: str = ""
    place: str = ""


class _Answer(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    schema_: str = Field(alias="schema")


class PendingPlan(_Answer):
    """A plan that is being made: ask for it by its id, or send the job again."""

    plan_id: str
    trace_id: str
    verdict: str = "pending"
    check_id: str | None = None
    least_bytes: int | None = None
    """Of a check: the fullest rank will take at least so much of its GPU."""


class CheckedHost(BaseModel):
    """The main memory of the fullest node beside what the job says that there is."""

    verdict: Verdict
    nodes: str
    bytes: int
    interval_bytes: tuple[int, int]
    capacity_bytes: int
    headroom_bytes: int


class Check(_Answer):
    """Whether a job fits. Bytes are those of the rank class that decides.

    With `basis` "lower_bound" the plan is not made yet, and the job exceeds whatever it will say: `device_bytes` are
    what the fullest rank takes at least, and so are both ends of the interval.
    """

    check_id: str
    plan_id: str
    trace_id: str
    verdict: Verdict
    calibrated: bool
    device_bytes: int
    interval_bytes: tuple[int, int]
    capacity_bytes: int
    headroom_bytes: int
    message: str
    """One line for people, as `planner check` prints it."""
    basis: Literal["lower_bound"] | None = None
    host: CheckedHost | None = None
    """Of a plan whose job says what main memory its nodes have; the verdict is the worse of both."""


class Plan(_Answer):
    """A plan, as `planner plan --format json` prints it; abridged here."""

    model_config = ConfigDict(extra="allow")
    plan_id: str
    trace_id: str
    verdict: Verdict
    calibrated: bool
    job: dict[str, Any]
    rank_classes: list[dict[str, Any]]
    advice: list[dict[str, Any]]
    without_compile: dict[str, Any] | None = None
    """Of a job under torch.compile: what the eager step takes, and what its peak has more."""
    another_torch: dict[str, Any] | None = None
    """Of a job whose release of torch is not offered: the one that it was planned with, and the relative difference by
    which its interval is wider."""
    provenance: dict[str, str]
    seconds: dict[str, float]


class PlanSummary(BaseModel):
    """A plan in a list. Requested and predicted bytes are sums over all ranks of the job, the others those of the rank
    that takes the most, and of its GPU."""

    plan_id: str
    trace_id: str
    stored_at: datetime
    verdict: Verdict
    calibrated: bool
    name: str
    team: str
    queue: str
    gpu: str
    ranks: int
    requested_bytes: int
    predicted_bytes: int
    fullest_bytes: int
    capacity_bytes: int


class PlanList(_Answer):
    plans: list[PlanSummary]


class JobSummary(BaseModel):
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


class JobList(_Answer):
    jobs: list[JobSummary]


class Health(BaseModel):
    status: str


EXAMPLE_JOB: dict[str, Any] = {
    "metadata": {"name": "tiny", "team": "nlp", "queue": "h100"},
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256}},
    "train": {"micro_batch_size": 2, "sequence_length": 32, "optimizer": {"name": "AdamW"}},
    "parallel": {"dp_replicate": 1},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "H100-SXM-80GB"},
}
"""A job that is traced in a moment."""
EXAMPLE_YAML = """\
metadata: {name: tiny, team: nlp}
model: {decoder: {layers: 2, hidden: 64, heads: 4, kv_heads: 4, ffn: 128, vocab: 256}}
train: {micro_batch_size: 2, sequence_length: 32}
cluster: {nodes: 1, gpus_per_node: 1, gpu: H100-SXM-80GB}
"""

_SECTIONS = ("metadata", "model", "train", "parallel", "cluster", "software", "allocator")
_JOB_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A bundle (planner spec --bundle), or a job spec that refers to nothing outside.",
    "properties": {
        "schema": {"type": "string", "enum": ["planner.bundle/1"]},
        **{name: {"type": "object"} for name in _SECTIONS},
    },
    "required": ["model", "cluster"],
    "additionalProperties": False,
    "example": EXAMPLE_JOB,
}
_CODES = {
    400: "the body cannot be read",
    401: "a bearer token is needed",
    403: "the job brings code, which this service does not take",
    404: "there is none of that id",
    408: "the body took too long to arrive",
    409: "it contradicts what is stored",
    413: "the body is too large",
    415: "a content type that is not read here",
    422: "the job, or a value, cannot be used",
    429: "too much at once: come again after Retry-After",
    503: "something that the service stands on is not there: come again after Retry-After",
    504: "the plan was not ready in the time that `Prefer: wait` gave it",
}


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an endpoint documents; those that any request can meet are among them."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {code: {"description": _CODES[code], "content": content} for code in sorted({*codes, 429, 503})}


def takes(schema: dict[str, Any], example: Any, yaml: str = "") -> dict[str, Any]:
    """The body of an endpoint that reads it itself."""
    content: dict[str, Any] = {"application/json": {"schema": schema, "example": example}}
    if yaml:
        content["application/yaml"] = {"schema": {"type": "string"}, "example": yaml}
    return {"requestBody": {"required": True, "content": content}, "security": [{"bearer": []}, {}]}


def prefer(text: str) -> dict[str, Any]:
    """The header of that name, as a parameter."""
    return {"name": "Prefer", "in": "header", "required": False, "schema": {"type": "string"}, "description": text}


_WRITES = (400, 401, 408, 413, 415, 422)
plan_a_job: dict[str, Any] = {
    "response_model": Plan,
    "responses": {202: {"model": PendingPlan, "description": "it is being made"}, **problems(*_WRITES, 403, 504)},
    "openapi_extra": takes(_JOB_SCHEMA, EXAMPLE_JOB, EXAMPLE_YAML)
    | {"parameters": [prefer("`wait=N`: at most N seconds; `respond-async`: 202 instead of 504")]},
}
one_plan: dict[str, Any] = {"response_model": Plan, "responses": problems(404)}
plan_list: dict[str, Any] = {"response_model": PlanList, "responses": problems(422)}
check_a_job: dict[str, Any] = {
    "response_model": Check,
    "responses": {202: {"model": PendingPlan, "description": "it is being made"}, **problems(*_WRITES, 403)},
    "openapi_extra": takes(_JOB_SCHEMA, EXAMPLE_JOB, EXAMPLE_YAML)
    | {"parameters": [prefer("`wait=N`: at most N seconds instead of the service's own")]},
}
bind_a_job: dict[str, Any] = {
    "response_model": BoundJobBody,
    "responses": problems(*_WRITES, 404, 409),
    "openapi_extra": takes({"$ref": "#/components/schemas/JobBody"}, JOB_EXAMPLE),
}
one_job: dict[str, Any] = {"response_model": BoundJobBody, "responses": problems(404)}
job_list: dict[str, Any] = {"response_model": JobList, "responses": problems(422)}
alive: dict[str, Any] = {"response_model": Health}
ready: dict[str, Any] = {"response_model": Health, "responses": problems()}
