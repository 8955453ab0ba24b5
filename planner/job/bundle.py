"""Jobs as plain data: the self-contained bundle, and the identity of a trace."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from planner.job.json_text import canonical_json, without_floats
from planner.job.loading import BUNDLE_SCHEMA
from planner.job.schema import CheckpointLoad, Compile, DataLoader, Gpu, Job, Optimizer, Software

_ADDED: Mapping[str, Any] = {
    "train.lengths": None,
    "train.retains": "",
    "train.eval.batches": 1,
    "train.eval.gather": "",
    "train.eval.accumulation_steps": 0,
    "train.eval.generate": None,
}
"""Keys that came later, and what was done before a spec could say something else: where they say this, the identity is
what it was, for answers that are stored."""


def document(job: Job) -> dict[str, Any]:
    """The job as the mapping that a spec would hold if it said everything; loads again to the same job."""
    return typing.cast(dict[str, Any], _plain(job, Job))


def bundle(job: Job) -> dict[str, Any]:
    """The job as one self-contained JSON object, schema planner.bundle/1."""
    return {"schema": BUNDLE_SCHEMA, **typing.cast(dict[str, Any], without_floats(document(job)))}


def bundle_text(job: Job) -> str:
    """The bundle as it is printed."""
    return json.dumps(bundle(job), indent=2, allow_nan=False) + "\n"


def trace_id(job: Job, software: Mapping[str, str]) -> str:
    """What a trace is stored under: the SHA-256 of the bundle without metadata and of the software that traces it.

    `software` names the versions of planner, torch and transformers.
    """
    parts = {key: value for key, value in bundle(job).items() if key != "metadata"}
    _leave_out_defaults(job, parts)
    for path, usual in _ADDED.items():
        _leave_out(parts, path.split("."), usual)
    identity = canonical_json({"bundle": parts, "software": dict(software)})
    return hashlib.sha256(identity.encode("ascii")).hexdigest()


def _leave_out(part: Any, keys: Sequence[str], usual: Any) -> None:
    """Takes the value at these keys away if it is the usual one."""
    *sections, last = keys
    for key in sections:
        part = part.get(key)
        if not isinstance(part, dict):
            return
    if last in part and part[last] == usual:
        del part[last]


def _leave_out_defaults(job: Job, parts: dict[str, Any]) -> None:
    """What a spec could not say before is no part of an identity where it says nothing: answers are stored by it."""
    if job.software.step == Software().step:
        del parts["software"]["step"]
    if job.post_training is None:
        del parts["post_training"]
    if job.train.data_loader == DataLoader():
        del parts["train"]["data_loader"]
    if not job.train.loss.chunk_head:
        del parts["train"]["loss"]["chunk_head"]
    if not job.cluster.host_memory:
        del parts["cluster"]["host_memory"]
    if job.train.checkpoint_save is None:
        del parts["train"]["checkpoint_save"]
    if (load := job.train.checkpoint_load) is not None:
        usual, said = CheckpointLoad(), parts["train"]["checkpoint_load"]
        for key in ("mmap", "kind", "broadcast_from_rank0", "optimizer"):
            if getattr(load, key) == getattr(usual, key):
                del said[key]


def _plain(value: Any, hint: Any) -> Any:
    if value is None and hint == Compile | None:
        return False  # as people write it, and as it was before there was more to say
    if value is None or (hint is not float and isinstance(value, str | int)):
        return value
    if isinstance(value, Optimizer):
        return {"name": value.name, **value.arguments}
    if isinstance(value, Gpu) and value == Gpu():
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = _hints(type(value))
        return {
            field.name: _plain(getattr(value, field.name), hints[field.name]) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _plain(item, None) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, None) for item in value]
    return float(value) if hint is float else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
