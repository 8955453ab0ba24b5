"""Reads and answers AdmissionReview v1 of the API server.

Pure. Limits and meanings are those of k8s.io/api/admission/v1 (types.go) and of the API server that reads the answer.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.admission.decision import Action, Decision
from planner.errors import PlannerError

SCHEMA = "admission.k8s.io/v1"
LONGEST_WARNING = 256
"""Characters: what is longer may be cut (types.go, AdmissionResponse.Warnings)."""
MOST_WARNINGS = 12
"""With their lengths below the 4,096 characters that a client is shown."""
_LONGEST_MESSAGE = 4096
_DURATION = re.compile(r"([0-9]{1,3})s")
USUAL_SECONDS, MOST_SECONDS = 10.0, 30.0
"""timeoutSeconds of a webhook: its default and its largest value."""


class ReviewError(PlannerError):
    """What arrived is no AdmissionReview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The request within a review. `job` is the object as it would be stored; empty where there is none."""

    uid: str
    operation: str
    namespace: str
    kind: str
    dry_run: bool
    job: Mapping[str, Any]


def read(body: bytes) -> Review:
    """The review in a request's body. Raises ReviewError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ReviewError("the body is no JSON", allowed=f"an AdmissionReview of {SCHEMA}") from None
    if not isinstance(found, dict) or found.get("kind") != "AdmissionReview" or found.get("apiVersion") != SCHEMA:
        raise ReviewError("the body is no AdmissionReview", allowed=f"an AdmissionReview of {SCHEMA}")
    request = found.get("request")
    if not isinstance(request, dict):
        raise ReviewError("the review has no request", allowed="an object", place="request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid or len(uid) > 256:
        raise ReviewError("the request has no uid", allowed="a text of 1 to 256 characters", place="request.uid")
    kind = request.get("kind")
    return Review(
        uid=uid,
        operation=_text(request, "operation"),
        namespace=_text(request, "namespace"),
        kind=_text(kind, "kind", "request.kind.") if isinstance(kind, dict) else "",
        dry_run=request.get("dryRun") is True,
        job=_job(request),
    )


def _job(request: Mapping[str, Any]) -> Mapping[str, Any]:
    found = request.get("object")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ReviewError("the object is none", allowed="the object that is submitted", place="request.object")
    return found


def _text(given: Mapping[str, Any], name: str, place: str = "request.") -> str:
    value = given.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    raise ReviewError(f"the {name} is no text", allowed="a text", place=place + name)


def seconds_left(timeout: str) -> float:
    """How long the API server waits, by the `timeout` that it adds to the address; the usual time if it says none.

    validating/dispatcher.go rounds it up to whole seconds: what is answered has to be there well before.
    """
    said = _DURATION.fullmatch(timeout)
    seconds = min(max(float(said[1]), 1.0), MOST_SECONDS) if said else USUAL_SECONDS
    return seconds - max(1.0, seconds / 10) if seconds > 2 else seconds / 2


def answer(uid: str, decision: Decision | None, notes: Sequence[str] = ()) -> dict[str, Any]:
    """The review that goes back; without a decision the object goes its way without a word."""
    response: dict[str, Any] = {"uid": uid, "allowed": decision is None or decision.admits}
    if decision is not None:
        warnings = _warnings(decision, notes)
        if warnings:
            response["warnings"] = warnings
        if not decision.admits:
            message = decision.text[:_LONGEST_MESSAGE]
            response["status"] = {"code": 403, "reason": "Forbidden", "message": message}
        # The API server puts the webhook's name in front of the keys.
        said = {"action": decision.action.value, "verdict": decision.verdict, "plan-id": decision.plan_id}
        response["auditAnnotations"] = {key: value for key, value in said.items() if value}
    return {"apiVersion": SCHEMA, "kind": "AdmissionReview", "response": response}


def _warnings(decision: Decision, notes: Sequence[str]) -> list[str]:
    """A refusal says its own text; clients put their own "Warning:" in front of each of these."""
    said = []
    if decision.action is Action.WARN:
        said.append(f"planner: {decision.reason}")
        if decision.change:
            said.append(f"planner: the smallest change that fits: {decision.change}")
    said += [f"planner: {note}" for note in notes]
    if said and decision.plan_id:
        said.append(f"planner: the plan is {decision.plan_id}")
    return [part for line in said[:MOST_WARNINGS] for part in _parts(line)][:MOST_WARNINGS]


def _parts(line: str) -> list[str]:
    line = line[: LONGEST_WARNING * MOST_WARNINGS]  # wrapping one long word takes time that grows faster than it
    printable = "".join(letter if letter.isprintable() else "?" for letter in line)
    return textwrap.wrap(printable, LONGEST_WARNING, break_on_hyphens=False)
