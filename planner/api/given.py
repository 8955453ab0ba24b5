"""The job that a Python call names, by whatever stands for one: a file, a model's name, a mapping, or a Job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from planner.errors import SpecError
from planner.job import named_jobs
from planner.job.loading import bundle
from planner.job.named_jobs import STANDARD_INPUT, GivenJob, ImportedJob
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
    imported = named_jobs.read(
        GivenJob(
            named=named,
            standard_input=text,
            words=_shorthand(words),
            settings=[setting(key, value, f"settings[{key!r}]") for key, value in (settings or {}).items()],
        ),
        Path(),
    )
    return Given(imported.job, _taken(imported))


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
        raise SpecError(f"the mapping is not a job: {error}", allowed="what JSON can hold, as in a spec") from None


_OF_OPTIONS = {"sequence_length": "seq", "micro_batch_size": "batch", "gradient_accumulation_steps": "accumulate"}
"""Words that the command line calls otherwise."""
_NUMBERS = ("micro_batch_size", "gradient_accumulation_steps", "zero", "offload")
"""Words that are handed on as they are; the others as the text that the command line would have."""


_ALONE = {"lora": "", "qlora": "", "dora": "", "fsdp": REST, "ddp": REST, "recompute": "full"}
"""What a word stands for that is True."""


def _shorthand(words: JobWords) -> Shorthand:
    given = {name: value if name in _NUMBERS else _text(name, value) for name, value in words.items()}
    return Shorthand(**{_OF_OPTIONS.get(name, name): value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _text(name: str, value: Any) -> str | None:
    """As the command line writes it; None for nothing said."""
    if value is None or value is False:
        return None
    if value is True:
        return _ALONE.get(name, str(value))
    if name in ("lora", "qlora", "dora") and isinstance(value, Mapping):
        return ",".join(f"{key}={_joined(inner)}" for key, inner in value.items())
    return _json_text(value) if isinstance(value, Mapping) else str(value)


def _joined(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _taken(imported: ImportedJob) -> tuple[str, ...]:
    return (*(f"taken: {sentence}" for sentence in imported.supposed), *imported.chosen)
