"""What the reading process does: reads jobs, requests for specs, snapshots and timelines strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.allocator.replay import replay_until_settled
from planner.allocator.rules import Rules
from planner.errors import SpecError
from planner.job import named_jobs, printing, shorthand
from planner.job.json_text import read_json
from planner.job.loading import bundle, load_bundle, load_document, load_yaml
from planner.job.named_jobs import STANDARD_INPUT, GivenJob
from planner.job.schema import Job
from planner.job.shorthand import Shorthand
from planner.job.size_limits import LARGEST_YAML
from planner.planning.judging import told_on
from planner.planning.planned_classes import refuse_unplannable
from planner.report.class_timeline import ClassTimeline, timeline_to_json
from planner.report.recorded_snapshot import explain
from planner.report.statement import from_json
from planner.searching import requests
from planner.searching.requests import SearchRequest
from planner.service.http.problems import RequestError
from planner.tracing import rank_trace

JSON, YAML = "application/json", "application/yaml"
YAML_TYPES = (YAML, "application/x-yaml", "text/yaml", "text/x-yaml")


def too_large(most_bytes: int) -> RequestError:
    return RequestError(413, "the body is too large", allowed=f"at most {most_bytes} bytes")


def read_job(body: bytes, kind: str) -> Job:
    if kind in YAML_TYPES:
        if len(body) > LARGEST_YAML:
            error = too_large(LARGEST_YAML)
            error.remedy = "send a bundle, as planner spec --bundle prints it"
            raise error
        return load_yaml(_text(body), "the body")
    document = read_object(body)
    return load_bundle(document, "the body") if "schema" in document else load_document(document, "the body")


def read_object(body: bytes, _: str = JSON) -> dict[str, Any]:
    try:
        document = read_json(_text(body), "the body", constants=False)
    except SpecError as error:
        raise RequestError(400, error.problem, allowed=error.allowed, remedy=error.remedy, place=error.place) from None
    if not isinstance(document, dict):
        raise RequestError(400, "the body must be a JSON object", allowed="one JSON object", place="the body")
    return document


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body must be UTF-8 text (byte {error.start})", place="the body") from None


_ALLOWED: Mapping[str, str] = {
    "int_type": "a whole number",
    "less_than": "a whole number below 2^62",
    "greater_than": "a whole number above -2^62",
    "string_type": "a text",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "value_error": "such as 2026-01-31T12:00:00Z",
    "missing": "a value",
}
"""By the type that pydantic gives an error (docs.pydantic.dev, validation errors)."""


def explain_body_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first thing that is wrong, as 422 with place and what is allowed."""
    # Against each part of a union pydantic reports an error; its place ends with the part's name.
    first = error.errors(include_url=False)[0]
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:60]}" for part in first["loc"])
    place = "".join(parts).removeprefix(".")
    match first["type"]:
        case "extra_forbidden":
            known = ", ".join(_keys(model, first["loc"]))
            return RequestError(422, f"there is no key {_show(first['loc'][-1])}", allowed=known, place=place)
        case "missing":
            return RequestError(422, f"{place} is missing", allowed=_ALLOWED["missing"], place=place)
        case "literal_error" | "enum":
            allowed = str(first["ctx"]["expected"]).replace("'", "")
        case "string_pattern_mismatch":
            allowed = f"what matches {first['ctx']['pattern']}"
        case kind:
            allowed = _ALLOWED.get(kind, first["msg"])
    return RequestError(422, f"{place} is {_show(first['input'])}", allowed=allowed, place=place)


def _keys(model: type[BaseModel], parts: Sequence[int | str]) -> list[str]:
    whole = model.model_json_schema()
    schema: Mapping[str, Any] = whole
    for part in parts[:-1]:
        key = "items" if isinstance(part, int) else "properties"
        member = next(option[key] for option in (schema, *schema.get("anyOf", ())) if key in option)
        member = member if isinstance(part, int) else member[part]
        schema = whole["$defs"][member["$ref"].rpartition("/")[2]] if "$ref" in member else member
    return list(schema.get("properties", ()))


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."


EXAMPLE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B",
    "words": {"gpus": "4xH100", "seq": "4k", "fsdp": "rest"},
    "set": {"train.micro_batch_size": 2},
}
Degree = Annotated[str, Field(max_length=20)]
Word = Annotated[str, Field(max_length=200)]


class Words(BaseModel):
    """The options of `planner plan` of these names. A degree is a number as text, or `rest`: GPUs that no other axis
    takes."""

    model_config = ConfigDict(extra="forbid", strict=True)
    gpus: Word = ""
    gpu: Word = ""
    seq: Word = ""
    batch: int | None = None
    accumulate: int | None = None
    lora: Word | None = None
    qlora: Word | None = None
    dora: Word | None = None
    fsdp: Degree | None = None
    ddp: Degree | None = None
    tp: Degree | None = None
    pp: Degree | None = None
    cp: Degree | None = None
    ep: Degree | None = None
    zero: int | None = None
    precision: Word = ""
    optimizer: Word = ""
    recompute: Word = ""
    offload: bool = False


class SpecBody(BaseModel):
    """Exactly one of `model` (a name of GET /v1/models), `job` (a bundle, or a spec in JSON) and `spec` (YAML).

    `words` are said beside it; `set` puts values into what comes of it, by dotted keys."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": EXAMPLE})
    model: Word = ""
    job: dict[str, Any] | None = None
    spec: str = ""
    words: Words = Words()
    set: dict[str, Any] = Field(default_factory=dict, max_length=100)


class SpecDocument(BaseModel):
    """A spec, and the bundle that it comes to. `taken` is what nobody said, `notes` what was open."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal["planner.spec/1"] = Field("planner.spec/1", alias="schema")
    spec: str
    job: dict[str, Any]
    taken: list[str]
    notes: list[str]


def read_spec_request(content: bytes, _: str = "") -> dict[str, Any]:
    document = read_object(content)
    try:
        body = SpecBody.model_validate(document)
    except ValidationError as error:
        raise explain_body_error(error, SpecBody) from None
    named = [name for name in ("model", "job", "spec") if getattr(body, name)]
    if len(named) != 1:
        raise RequestError(
            422,
            f"{' and '.join(named)} both say which job" if named else "nothing says which job",
            allowed="one of model, job, spec",
            remedy='send one of them, such as {"model": "Qwen/Qwen3-8B"}',
        )
    settings = []
    for key, value in body.set.items():
        if not key or "" in key.split("."):
            raise RequestError(422, f"{key[:80]!a} is not a key", allowed="such as train.micro_batch_size", place="set")
        settings.append(shorthand.setting(key, value, key))
    words = Shorthand.of_words(body.words)
    if body.model:
        given = GivenJob(named=body.model, words=words, settings=settings)
    else:
        text = body.spec if body.job is None else json.dumps(body.job)
        if body.spec and len(text) > LARGEST_YAML:
            raise too_large(LARGEST_YAML)
        given = GivenJob(named=STANDARD_INPUT, standard_input=text, words=words, settings=settings)
    imported = named_jobs.read(given, None)
    return {
        "schema": "planner.spec/1",
        "spec": printing.short_yaml(imported.job),
        "job": bundle(imported.job),
        "taken": list(imported.supposed),
        "notes": list(imported.chosen),
    }


def read_search(content: bytes, most_seconds: str) -> SearchRequest:
    """Layouts of a job may be many: whether they can be is found out here too, but for code of users, which may be
    refused for that first."""
    asked = requests.read(read_object(content), float(most_seconds))
    refuse_unplannable(asked.job)
    if not asked.job.model.factory:
        asked.space()
    return asked


def read_replay(content: bytes, conf: str) -> dict[str, Any]:
    """The document that answers it; `conf` is `=` and a PYTORCH_ALLOC_CONF, or empty where none is asked for."""
    return explain(content, conf.removeprefix("=") if conf else None)


SCHEMA = "planner.timeline/1"
POINTS = 700
"""Moments of a picture: about as many as a screen has points for it."""


def read_timeline(content: bytes, _: str = "") -> dict[str, Any]:
    """The document of a rank class: `content` is the JSON array of a plan's text, a rank and its trace's text.

    Called where it may take seconds. Raises ValueError for a trace that is damaged.
    """
    plan_text, rank, text = json.loads(content)
    plan = from_json(json.loads(plan_text))
    statement = next(one for one in plan.rank_classes if one.representative == rank)
    job = load_bundle(plan.job, "the plan's job")
    told = told_on(job.cluster.gpu, job.cluster.gpus_per_node, rank_trace.loads(text))
    rules = Rules.from_conf(job.allocator.conf)
    # On the capacity that it had, or without an end where that is not enough.
    room = max(statement.capacity_bytes - statement.outside_allocator.total_bytes, 0)
    replay = replay_until_settled(told.events, told.repeats, rules, room, device_bytes=job.cluster.gpu.total_bytes)
    if replay.timeline.out_of_memory is not None:
        replay = replay_until_settled(told.events, told.repeats, rules)
    drawn = timeline_to_json(ClassTimeline(statement, replay.events, replay.timeline), POINTS)
    return {"schema": SCHEMA, "plan_id": plan.plan_id, "representative": rank, **drawn}
