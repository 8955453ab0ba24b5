"""The job that a Python call names, by whatever stands for one: a file, a model's name, a mapping, or a Job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from planner.errors import SpecError
from planner.job.importers import job_import
from planner.job.importers.job_import import STANDARD_INPUT, GivenJob, ImportedJob
from planner.job.loading import bundle
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.job.shorthand import REST, Shorthand, setting

JobSource = str | os.PathLike[str] | Mapping[str, Any] | Job
"""A spec or bundle (a path, or its content as a mapping), a model (its name on the hub, its config.json, its folder),
or a Job."""


class JobWords(TypedDict, total=False):
    """The job in a few words: the options of the command line, by the names that a spec has for them."""

    gpus: str | int
    """`"4xH100"`, `"2x8xA100"` (nodes, GPUs of a node), or a number"""
    gpu: str | Mapping[str, Any]
    """A name, or `{"total_bytes": "9.5GiB", "arch": "sm_80"}`"""
    sequence_length: int | str
    """Tokens; `"4k"` is 4096"""
    micro_batch_size: int
    gradient_accumulation_steps: int
    lora: bool | str | Mapping[str, Any]
    """True, `"r=16,alpha=32"`, or a mapping of the same; also of the next two"""
    qlora: bool | str | Mapping[str, Any]
    dora: bool | str | Mapping[str, Any]
    fsdp: bool | int
    """Shard by FSDP2 over so many ranks; True: over all that no other axis takes"""
    ddp: bool | int
    tp: int
    pp: int
    cp: int
    ep: int
    zero: int
    precision: str
    optimizer: str
    recompute: bool | str | int
    offload: bool


@dataclass(frozen=True, slots=True)
class Given:
    """The job, and sentences on what nobody said and was taken."""

    job: Job
    taken: tuple[str, ...]


def read_job(job: JobSource, settings: Mapping[str, Any] | None = None, **words: Unpack[JobWords]) -> Given:
    """The job with these words and settings (keys of a spec) over what it says itself.

    Raises SpecError, also for a word that there is not.
    """
    for name in words:
        if name not in JobWords.__annotations__:
            raise SpecError(
                f"there is no word {name!r} for a job",
                allowed=", ".join(JobWords.__annotations__),
                remedy=did_you_mean(name, list(JobWords.__annotations__)) or "settings={...} sets any key of a spec",
            )
    named, text = _named(job)
    found = job_import.read(
        GivenJob(
            named=named,
            standard_input=text,
            words=_shorthand(words),
            settings=[setting(key, value, f"settings[{key!r}]") for key, value in (settings or {}).items()],
        ),
        Path(),
    )
    return Given(found.job, _taken(found))


def _named(job: JobSource) -> tuple[str, str]:
    """As a command line would name it, and the text of its standard input."""
    if isinstance(job, Job):
        return STANDARD_INPUT, json.dumps(bundle(job))
    if isinstance(job, Mapping):
        return STANDARD_INPUT, _json_text(job)
    named = os.fspath(job)
    if not named or named == STANDARD_INPUT:
        raise SpecError(
            f"{named!r} names no job",
            allowed="the path of a spec or a bundle, a model's name or folder, a mapping, or a Job",
            remedy='planner.plan("Qwen/Qwen3-8B", gpus="4xH100", fsdp=True), for a model that planner knows',
        )
    return named, ""


def _json_text(job: Mapping[str, Any]) -> str:
    try:
        return json.dumps(job, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecError(f"the mapping is no job: {error}", allowed="what JSON can hold, as in a spec") from None


def _shorthand(words: JobWords) -> Shorthand:
    degrees = {"dp_shard": words.get("fsdp", False), "dp_replicate": words.get("ddp", False)}
    axes = {axis: REST if degree is True else str(degree) for axis, degree in degrees.items() if degree is not False}
    axes |= {name: str(words[name]) for name in ("tp", "pp", "cp", "ep") if name in words}
    return Shorthand(
        gpus=str(words.get("gpus", "")),
        gpu=_gpu(words.get("gpu", "")),
        sequence_length=str(words.get("sequence_length", "")),
        micro_batch_size=words.get("micro_batch_size"),
        gradient_accumulation_steps=words.get("gradient_accumulation_steps"),
        lora=_adapter(words.get("lora")),
        qlora=_adapter(words.get("qlora")),
        dora=_adapter(words.get("dora")),
        degrees=axes,
        zero=words.get("zero"),
        precision=words.get("precision", ""),
        optimizer=words.get("optimizer", ""),
        recompute=_recompute(words.get("recompute", "")),
        offload=words.get("offload", False),
    )


def _gpu(said: str | Mapping[str, Any]) -> str:
    return said if isinstance(said, str) else _json_text(said)


def _adapter(said: bool | str | Mapping[str, Any] | None) -> str | None:
    """As the command line writes it."""
    if said is None or said is False:
        return None
    if said is True:
        return ""
    if isinstance(said, str):
        return said
    return ",".join(f"{key}={_joined(value)}" for key, value in said.items())


def _joined(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _recompute(said: bool | str | int) -> str:
    if isinstance(said, bool):
        return "full" if said else ""
    return str(said)


def _taken(found: ImportedJob) -> tuple[str, ...]:
    ignored = tuple(
        f"{source}: without effect on memory: {', '.join(names)}" for source, names in found.ignored.items() if names
    )
    return (*ignored, *(f"taken: {each}" for each in found.supposed), *found.chosen)
