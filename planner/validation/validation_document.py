"""Writes a validation as the JSON object `planner.validation/1`, and reads it from the history meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from planner.history.validation_table import State, Validation
from planner.validation import request as requests
from planner.validation.request import Request

SCHEMA = "planner.validation/1"
LIST_SCHEMA = "planner.validations/1"
_ASKED = "request"


def to_json(validation: Validation, *, with_result: bool = True) -> dict[str, Any]:
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
    return {_ASKED: requests.to_json(request)}


def make_document(request: Request, result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept for good: without the job, which its plan has."""
    asked = {key: value for key, value in requests.to_json(request).items() if key != "job"}
    return {_ASKED: asked, **result}


def request_of(validation: Validation) -> Request | None:
    """What was asked for, of one that is not over. Raises SpecError if it cannot be read any more."""
    asked = validation.result.get(_ASKED, {})
    return requests.from_json(asked) if validation.state is State.PENDING and "job" in asked else None


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
