"""Reads a validation request strictly, and writes a validation as the JSON object `planner.validation/1`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from planner.errors import SpecError
from planner.job.layout import Mesh, representatives
from planner.job.loading import bundle, load_bundle
from planner.job.nodes import did_you_mean
from planner.job.schema import Job
from planner.job.trainer import refuse_on_cpu
from planner.records import shape
from planner.service.history.records import Validation

MOST_RANKS = 16
"""With absent peers every rank asked for is a process of its own, one after the other."""
KEYS = ("plan_id", "job", "ranks", "mode", "device")
_Choice = TypeVar("_Choice", bound=StrEnum)


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

    job: Job = field(metadata=shape(write=bundle))
    ranks: tuple[int, ...]
    mode: Mode = Mode.AUTO
    device: Device = Device.CUDA
    plan_id: str = ""


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


def build_request(body: Mapping[str, Any], job: Job, plan_id: str = "") -> Request:
    world_size, ranks = job.cluster.ranks, body.get("ranks")
    if ranks is None:
        ranks = representatives(Mesh.of(job.parallel), MOST_RANKS)
    else:
        allowed = f"1 to {MOST_RANKS} different ranks from 0 to {world_size - 1}"
        if not isinstance(ranks, list | tuple) or not 1 <= len(ranks) <= MOST_RANKS:
            raise SpecError("ranks must be a list of ranks", allowed=allowed, place="ranks")
        for rank in ranks:
            if type(rank) is not int or not 0 <= rank < world_size or ranks.count(rank) > 1:
                raise SpecError(f"{str(rank)[:40]} cannot be one of the ranks", allowed=allowed, place="ranks")
    mode, device = _one_of(body, "mode", Mode.AUTO), _one_of(body, "device", Device.CUDA)
    if device is Device.CPU:
        refuse_on_cpu(job)
    return Request(job=job, ranks=tuple(ranks), mode=mode, device=device, plan_id=plan_id)


def _one_of(body: Mapping[str, Any], key: str, usual: _Choice) -> _Choice:
    kind, value = type(usual), body.get(key, usual.value)
    if value not in list(kind):
        raise SpecError(f"{str(value)[:80]!r} is not a {key}", allowed=", ".join(kind), place=key)
    return kind(value)


def from_json(document: Mapping[str, Any]) -> Request:
    return build_request(document, load_bundle(document["job"]), str(document.get("plan_id", "")))


SCHEMA = "planner.validation/1"
LIST_SCHEMA = "planner.validations/1"
ASKED = "request"
"""The key of a stored validation's result for what was asked for; with the job as long as it may have to be run."""


def validation_json(validation: Validation, *, with_result: bool = True) -> dict[str, Any]:
    asked = validation.result.get(ASKED, {})
    result = {key: value for key, value in validation.result.items() if key != ASKED}
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
        "finished_at": None if validation.finished_at is None else validation.finished_at.isoformat(),
        "out_of_memory": validation.out_of_memory,
        "error_percent": validation.error_percent,
        "problem": validation.problem,
        **({"result": result or None} if with_result else {}),
    }
