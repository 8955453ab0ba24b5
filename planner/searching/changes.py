"""Changes of a job: dotted keys of the spec with their new values, as advice and searches write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from planner.errors import PlannerError
from planner.job import consistency
from planner.job.compile_checks import with_scope
from planner.job.loading import job_on_gpu
from planner.job.nodes import Node
from planner.job.schema import Adapter, Job, Optimizer, Recompute

Change = Mapping[str, Any]
"""Dotted key -> new value; None takes an argument of the optimizer away."""

_NOWHERE = Node({}, "", "")


def apply(job: Job, change: Change) -> Job:
    """The job with the change made; whether it makes sense, :func:`fault_of` says. Raises SpecError for a GPU that
    nobody knows, KeyError for a key that a job does not have."""
    for path, value in change.items():
        job = job_on_gpu(job, value) if path == "cluster.gpu" else _put(job, path.split("."), value)
    return job


def fault_of(job: Job) -> PlannerError | None:
    """What the rules of a spec say against the job; None if nothing."""
    try:
        consistency.check(job, _NOWHERE)
    except PlannerError as error:
        return error
    return None


def only_new(job: Job, change: Change) -> dict[str, Any]:
    """Those of the keys whose value the job does not have yet."""
    return {path: value for path, value in change.items() if value_at(job, path) != value}


def value_at(job: Job, path: str) -> Any:
    """What the job says at a dotted key, as a spec writes it."""
    if path == "cluster.gpu":
        return job.cluster.gpu.written
    value: Any = job
    for key in path.split("."):
        if isinstance(value, Optimizer) and key != "name":
            value = value.arguments
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    if isinstance(value, Recompute):
        return {"every": value.every} if value.mode == "every" else value.mode
    return list(value) if isinstance(value, tuple) else value


def _put(value: Any, keys: list[str], new: Any) -> Any:
    if not keys:
        return _built(value, new)
    first, *rest = keys
    if isinstance(value, Optimizer) and first != "name":
        return dataclasses.replace(value, arguments=_put(value.arguments, keys, new))
    if isinstance(value, Mapping):
        left = {key: each for key, each in value.items() if key != first}
        return left if new is None and not rest else {**left, first: _put(value.get(first, {}), rest, new)}
    if not hasattr(value, first):
        raise KeyError(first)
    inside = _put(getattr(value, first), rest, new)
    if first == "compile":
        return with_scope(dataclasses.replace(value, compile=inside))
    return dataclasses.replace(value, **{first: inside})


def _built(old: Any, new: Any) -> Any:
    """The value of a field out of what a spec writes."""
    if isinstance(old, Recompute):
        return Recompute(mode="every", every=new["every"]) if isinstance(new, dict) else Recompute(mode=new)
    if isinstance(old, Optimizer):
        return Optimizer(name=new["name"], arguments={key: each for key, each in new.items() if key != "name"})
    if isinstance(new, dict) and {"kind", "r"} <= new.keys():
        fields: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in new.items()}
        return Adapter(**fields)
    return tuple(new) if isinstance(old, tuple) else new
