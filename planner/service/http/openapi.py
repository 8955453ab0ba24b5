"""What OpenAPI says of plans, checks, jobs, runs, timelines and capacity. planner.job reads what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.hardware.gpus import GpuRecord
from planner.report.statement import Verdict
from planner.service.history.capacity import JobNeed, JobsOnGpu, on_gpu, queue_needs, simulate_added_nodes
from planner.service.http.job_bodies import EXAMPLE as JOB_EXAMPLE
from planner.service.http.job_bodies import BoundJobBody
from planner.service.http.run_requests import EXAMPLE, RunBody


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


class Run(_Answer):
    """A program's run, as `planner run --format json` prints it; abridged here."""

    model_config = ConfigDict(extra="allow")
    plan_id: str
    verdict: Verdict
    calibrated: bool
    command: list[str]
    gpu: str
    nodes: int
    gpus_per_node: int
    ending: str
    iterations: int
    rank_classes: list[dict[str, Any]]
    host: dict[str, Any] | None = None
    """What each node holds, as in a plan."""
    assumptions: list[dict[str, Any]]
    provenance: dict[str, str]
    seconds: dict[str, float]


def _query() -> list[dict[str, Any]]:
    """The keys of the body, for a tarball; there a command is one text."""
    described = RunBody.model_json_schema()["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": "of a tarball (required)" if name == "command" else "of a tarball",
            "schema": {"type": "string"} if name == "command" else described[name],
        }
        for name in described
        if name != "path"
    ]


_TARBALL = {"schema": {"type": "string", "format": "binary"}}
run_a_program: dict[str, Any] = {
    "response_model": Run,
    "responses": {
        202: {"model": PendingPlan, "description": "it is being run"},
        **problems(400, 401, 403, 408, 413, 415, 422, 504),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": RunBody.model_json_schema(), "example": EXAMPLE},
                "application/gzip": _TARBALL,
                "application/x-tar": _TARBALL,
            },
        },
        "security": [{"bearer": []}, {}],
        "parameters": [*_query(), prefer("`wait=N`: at most N seconds; `respond-async`: 202 instead of 504")],
    },
}
one_run: dict[str, Any] = {"response_model": Run, "responses": problems(404)}


class Timeline(BaseModel):
    """Memory of a rank class over time; abridged here.

    `at` are events of the allocator, ascending; each list is as long. `held` has for each moment
    `[[holder, bytes, count], ...]`, the largest first, and `who` says who the holders are.
    """

    model_config = ConfigDict(populate_by_name=True, extra="allow")
    schema_: str = Field(alias="schema")
    plan_id: str
    representative: int
    ranks: str
    events: int
    capacity_bytes: int
    outside_bytes: int
    at: list[int]
    places: list[float]
    """Where the moments lie on the width of a picture, from 0 to 1."""
    allocated_bytes: dict[str, list[int]]
    reserved_bytes: list[int]
    phases: list[dict[str, Any]]
    who: list[dict[str, Any]]
    held: list[list[tuple[int, int, int]]]


one_timeline: dict[str, Any] = {"response_model": Timeline, "responses": problems(404, 422)}


class Replay(BaseModel):
    """As `planner replay --format json` prints it, with each device's `timeline` and out-of-memory entries."""

    model_config = ConfigDict(populate_by_name=True, extra="allow")
    schema_: str = Field(alias="schema")
    conf: str
    """PYTORCH_ALLOC_CONF of the recorded process; empty also where the snapshot does not say."""
    devices: list[dict[str, Any]]


replay_a_snapshot: dict[str, Any] = {
    "response_model": Replay,
    "responses": problems(400, 401, 408, 413, 415, 422),
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        "security": [{"bearer": []}, {}],
    },
}


MOST_JOBS = 200
"""Listed for each GPU; all are counted."""


class Counts(BaseModel):
    """By verdict."""

    fits: int
    tight: int
    exceeds: int


class JobThere(BaseModel):
    """One job; bytes are those of its fullest rank. It cannot do without `least_bytes`."""

    system: str
    job_id: str
    name: str
    team: str
    queue: str
    planned_gpu: str
    ranks: int
    waits: bool
    verdict: Verdict
    least_bytes: int
    device_bytes: int
    highest_bytes: int


class OnGpuDocument(BaseModel):
    """The jobs on one type of GPU; `listed` has those that need most first, at most 200."""

    gpu: str
    total_bytes: int
    jobs: Counts
    gpus: Counts
    listed: list[JobThere]


class QueueNeedDocument(BaseModel):
    """GPUs that waiting jobs need: each the smallest on which it does not exceed; none is large enough for gpu ""."""

    queue: str
    gpu: str
    jobs: int
    gpus: int


class AddedDocument(BaseModel):
    """New nodes, and the jobs that wait: those that would start, still wait, or are too large for this GPU."""

    gpu: str
    nodes: int
    gpus: int
    started_jobs: int
    started_gpus: int
    idle_gpus: int
    waiting_jobs: int
    waiting_gpus: int
    too_large_jobs: int


def what_if(
    needs: Sequence[JobNeed], kinds: Sequence[GpuRecord], nodes: int | None, gpus_per_node: int
) -> dict[str, Any]:
    """The members `on`, `needs` and, if there are new nodes, `simulate_added_nodes`; `kinds` has one at least."""
    found: dict[str, Any] = {
        "on": [_on_gpu(on_gpu(needs, kind)) for kind in kinds],
        "needs": [asdict(each) for each in queue_needs(needs, kinds)],
    }
    if nodes is not None:
        changed = simulate_added_nodes(needs, kinds[0], nodes, gpus_per_node)
        found["added"] = {**asdict(changed), "idle_gpus": changed.idle_gpus}
    return found


def _on_gpu(found: JobsOnGpu) -> dict[str, Any]:
    return {
        "gpu": found.gpu,
        "total_bytes": found.total_bytes,
        "jobs": {verdict.value: found.jobs(verdict) for verdict in Verdict},
        "gpus": {verdict.value: found.gpus(verdict) for verdict in Verdict},
        "listed": [_job(need, verdict) for need, verdict in found.judged[:MOST_JOBS]],
    }


def _job(need: JobNeed, verdict: Verdict) -> dict[str, Any]:
    plain = asdict(need)
    plain["planned_gpu"] = plain.pop("gpu")
    del plain["capacity_bytes"]
    return {**plain, "verdict": verdict}
