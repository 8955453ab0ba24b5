"""Reads a validation request strictly, and writes a validation as the JSON object `planner.validation/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from planner.errors import SpecError
from planner.job.layout import Mesh, representatives
from planner.job.loading import bundle, load_bundle
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.service.history.records import Validation, ValidationState

MOST_RANKS = 16
"""With absent peers every rank asked for is a process of its own, one after the other."""
KEYS = ("plan_id", "job", "ranks", "mode", "device")


class Mode(StrEnum):
    """Whether the other ranks are there. AUTO: they are if the cluster has a GPU (or a CPU) for each."""

    AUTO = "auto"
    ABSENT_PEERS = "absent_peers"
    REAL_PEERS = "real_peers"


class Device(StrEnum):
    """Where the step runs. CPU validates structure: which tensors live when, not what a GPU's allocator makes of it."""

    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A validation that was asked for; `plan_id` is empty where only a job was given."""

    job: Job
    ranks: tuple[int, ...]
    mode: Mode = Mode.AUTO
    device: Device = Device.CUDA
    plan_id: str = ""

    @property
    def world_size(self) -> int:
        return Mesh.of(self.job.parallel).world_size


def check_keys(body: Mapping[str, Any]) -> None:
    """Raises SpecError for a key that a request does not have, and unless exactly one of plan_id and job is there."""
    for key in body:
        if key not in KEYS:
            raise SpecError(
                f"there is no key `{str(key)[:80]}`", allowed=", ".join(KEYS), remedy=did_you_mean(str(key), KEYS),
                place=str(key)[:80],
            )  # fmt: skip
    if ("plan_id" in body) == ("job" in body):
        raise SpecError("a validation is of one thing", allowed="either plan_id or job")


def request_of(body: Mapping[str, Any], job: Job, plan_id: str = "") -> Request:
    """The request that a body makes for this job. Raises SpecError for ranks, a mode or a device that cannot be."""
    return Request(
        job=job,
        ranks=_ranks(body.get("ranks"), job),
        mode=Mode(_one_of(body, "mode", [each.value for each in Mode], Mode.AUTO.value)),
        device=Device(_one_of(body, "device", [each.value for each in Device], Device.CUDA.value)),
        plan_id=plan_id,
    )


def to_json(request: Request) -> dict[str, Any]:
    """Plain values, from which the request comes back."""
    return {
        "job": bundle(request.job),
        "ranks": list(request.ranks),
        "mode": request.mode.value,
        "device": request.device.value,
        "plan_id": request.plan_id,
    }


def from_json(document: Mapping[str, Any]) -> Request:
    """The request that was written. Raises SpecError if it was not."""
    return request_of(document, load_bundle(document["job"]), str(document.get("plan_id", "")))


def _one_of(body: Mapping[str, Any], key: str, allowed: list[str], default: str) -> str:
    value = body.get(key, default)
    if value not in allowed:
        raise SpecError(f"{str(value)[:80]!r} is no {key}", allowed=", ".join(allowed), place=key)
    return str(value)


def _ranks(given: Any, job: Job) -> tuple[int, ...]:
    world_size = Mesh.of(job.parallel).world_size
    if given is None:
        return representatives(Mesh.of(job.parallel), MOST_RANKS)
    allowed = f"1 to {MOST_RANKS} different ranks from 0 to {world_size - 1}"
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_RANKS:
        raise SpecError("these are no ranks", allowed=allowed, place="ranks")
    for rank in given:
        if type(rank) is not int or not 0 <= rank < world_size or given.count(rank) > 1:
            raise SpecError(f"{str(rank)[:40]} cannot be one of the ranks", allowed=allowed, place="ranks")
    return tuple(given)


SCHEMA = "planner.validation/1"
LIST_SCHEMA = "planner.validations/1"
_ASKED = "request"


def validation_json(validation: Validation, *, with_result: bool = True) -> dict[str, Any]:
    """Plain values, keys in this order; `result` is null until there is one."""
    asked = validation.result.get(_ASKED, {})
    found = {key: value for key, value in validation.result.items() if key != _ASKED}
    return {
        "schema": SCHEMA,
        "validation_id": validation.validation_id,
        "state": validation.state.value,
        "plan_id": validation.plan_id,
        "mode": validation.mode,
        "device": asked.get("device", ""),
        "ranks": asked.get("ranks", []),
        "gpu": validation.gpu,
        "torch": validation.torch,
        "asked_at": validation.asked_at.isoformat(),
        "finished_at": _moment(validation.finished_at),
        "out_of_memory": validation.out_of_memory,
        "error_percent": validation.error_percent,
        "problem": validation.problem,
        **({"result": found or None} if with_result else {}),
    }


def waiting(request: Request) -> dict[str, Any]:
    """What has to be known to run it, even by another process."""
    return {_ASKED: to_json(request)}


def result_document(request: Request, result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept for good: without the job, which its plan has."""
    asked = {key: value for key, value in to_json(request).items() if key != "job"}
    return {_ASKED: asked, **result}


def stored_request(validation: Validation) -> Request | None:
    """What was asked for, of one that is not over. Raises SpecError if it cannot be read any more."""
    asked = validation.result.get(_ASKED, {})
    return from_json(asked) if validation.state is ValidationState.PENDING and "job" in asked else None


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
