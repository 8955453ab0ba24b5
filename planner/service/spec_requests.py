"""Reads a request for a spec: a model or a job, words of the command line, values set in it. No file is read."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.importers import given_job
from planner.importers.given_job import STANDARD_INPUT, GivenJob
from planner.job import overrides, printing
from planner.job.bundle import bundle
from planner.job.overrides import Setting
from planner.job.shorthand import Shorthand
from planner.job.size_limits import LARGEST_YAML
from planner.service.body_contents import read_object, too_large
from planner.service.body_errors import error_of_body
from planner.service.problems import RequestError

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

    def value(self) -> Shorthand:
        degrees = {"dp_shard": self.fsdp, "dp_replicate": self.ddp}
        degrees |= {axis: getattr(self, axis) for axis in ("tp", "pp", "cp", "ep")}
        return Shorthand(
            gpus=self.gpus,
            gpu=self.gpu,
            sequence_length=self.seq,
            micro_batch_size=self.batch,
            gradient_accumulation_steps=self.accumulate,
            lora=self.lora,
            qlora=self.qlora,
            dora=self.dora,
            degrees={axis: written for axis, written in degrees.items() if written is not None},
            zero=self.zero,
            precision=self.precision,
            optimizer=self.optimizer,
            recompute=self.recompute,
            offload=self.offload,
        )


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
    """The document that answers such a body. Raises SpecError and RequestError."""
    document = read_object(content)
    try:
        body = SpecBody.model_validate(document)
    except ValidationError as error:
        raise error_of_body(error, SpecBody) from None
    found = given_job.read(_given(body), None)
    return {
        "schema": "planner.spec/1",
        "spec": printing.short_yaml(found.job),
        "job": bundle(found.job),
        "taken": list(found.supposed),
        "notes": list(found.chosen),
    }


def _given(body: SpecBody) -> GivenJob:
    named = [name for name in ("model", "job", "spec") if getattr(body, name)]
    if len(named) != 1:
        raise RequestError(
            422,
            f"{' and '.join(named)} both say which job" if named else "nothing says which job",
            allowed="one of model, job, spec",
            remedy='send one of them, such as {"model": "Qwen/Qwen3-8B"}',
        )
    settings = [_setting(key, value) for key, value in body.set.items()]
    words = body.words.value()
    if body.model:
        return GivenJob(named=body.model, words=words, settings=settings)
    text = body.spec if body.job is None else json.dumps(body.job)
    if body.spec and len(text) > LARGEST_YAML:
        raise too_large(LARGEST_YAML)
    return GivenJob(named=STANDARD_INPUT, standard_input=text, words=words, settings=settings)


def _setting(key: str, value: Any) -> Setting:
    if not key or "" in key.split("."):
        raise RequestError(422, f"{key[:80]!a} is no key", allowed="such as train.micro_batch_size", place="set")
    return overrides.setting(key, value, key)
