"""What OpenAPI says of every endpoint: its problems, a body that it reads itself, and a job as an example of one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


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


class Answer(BaseModel):
    """A document that says which schema it has."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: str = Field(alias="schema")


EXAMPLE_JOB: dict[str, Any] = {
    "metadata": {"name": "tiny", "team": "nlp", "queue": "h100"},
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 4, "ffn": 128, "vocab": 256}},
    "train": {"micro_batch_size": 2, "sequence_length": 32, "optimizer": {"name": "AdamW"}},
    "parallel": {"dp_replicate": 1},
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": "H100-SXM-80GB"},
}
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
    410: "it was ended by a request before it was done",
    413: "the body is too large",
    415: "a content type that is not read here",
    422: "the job, or a value, cannot be used",
    429: "too many requests: retry after Retry-After",
    503: "something that the service needs is not there: retry after Retry-After",
    504: "the plan was not ready in the time that `Prefer: wait` gave it",
}


PROBLEM_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an endpoint documents; those that any request can meet are among them."""
    return {code: {"description": _CODES[code], "content": PROBLEM_CONTENT} for code in sorted({*codes, 429, 503})}


def takes(content: dict[str, Any], *preferences: str) -> dict[str, Any]:
    """The body of an endpoint that reads it itself, by media type, and what its header Prefer means."""
    parameters = {"parameters": [prefer(text) for text in preferences]} if preferences else {}
    return {"requestBody": {"required": True, "content": content}, "security": [{"bearer": []}, {}]} | parameters


def in_json(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema, "example": example}}


def prefer(text: str) -> dict[str, Any]:
    return {"name": "Prefer", "in": "header", "required": False, "schema": {"type": "string"}, "description": text}


WRITES = (400, 401, 408, 413, 415, 422)
"""Problems of every endpoint that reads a body."""
WAITS = "`wait=N`: at most N seconds; `respond-async`: 202 instead of 504"
A_JOB = {
    **in_json(_JOB_SCHEMA, EXAMPLE_JOB),
    "application/yaml": {"schema": {"type": "string"}, "example": EXAMPLE_YAML},
}
