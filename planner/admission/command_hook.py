"""The hook in front of any launcher: `planner check JOB.yaml -- torchrun ...` runs the command, if it may run.

Where a service knows of the job, this process stays to tell it when the command ended; else it becomes the command.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from planner.admission import supervising
from planner.admission.decision import Decision
from planner.admission.policy import Answer, Policy
from planner.admission.service_query import bind, client_of
from planner.errors import PlannerError
from planner.measuring.job_reports import job_of

SYSTEM = "launcher"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""As shells report them."""
LEASE_SECONDS = 300
"""How long a job counts as running after the last word of a launcher that was killed."""
RENEW_SECONDS = 100.0
"""Two of three words may be lost."""
USUAL: Mapping[str, Any] = {"refuse_uncalibrated": True, "unreachable": Answer.REFUSE}
"""Whoever puts this hook in front of a command asks for a refusal, also where nobody answers; an operator's file may
say otherwise."""


def environment_of(decision: Decision, policy: Policy, given: Mapping[str, str]) -> dict[str, str]:
    """What the command is told, for the callback in its training: which plan it was admitted with, and as which job."""
    found = dict(given)
    if not policy.server or not decision.plan_id:
        return found
    system, job = job_of(given) or (SYSTEM, uuid.uuid4().hex)
    found.update(PLANNER_PLAN_ID=decision.plan_id, PLANNER_JOB_SYSTEM=system, PLANNER_JOB_ID=job)
    found.setdefault("PLANNER_SERVER", policy.server)
    return found


def bind_to_plan(decision: Decision, policy: Policy, environment: Mapping[str, str]) -> str:
    """Tells the service of the job that begins now; what went wrong, or nothing."""
    if not policy.server:
        return ""
    told: dict[str, Any] = {"started_at": _now()}
    if supervising.can_supervise():
        told["lease_seconds"] = LEASE_SECONDS
    return bind(policy, *_job(environment), decision, told)


def launch(command: Sequence[str], environment: Mapping[str, str], policy: Policy, *, bound: bool) -> tuple[int, str]:
    """Runs the command; returns its exit code, or a shell's and why if it cannot be run.

    `bound`: the service knows of the job, with a lease that is renewed while the command runs, and is told of its end.
    Ends by a signal if the command did. Otherwise this process becomes the command.
    """
    if not bound or not supervising.can_supervise():
        return become(command, environment)
    try:
        code = supervising.run(
            command, environment, lambda: _tell(policy, environment, {"lease_seconds": LEASE_SECONDS}), RENEW_SECONDS
        )
    except (OSError, ValueError) as error:
        _tell(policy, environment, {"ended_at": _now(), "outcome": "failed"})
        return _not_started(command, error)
    # A command that ended well may not have trained at all: that it finished is for its callback to say.
    _tell(policy, environment, {"ended_at": _now(), **({"outcome": "failed"} if code else {})})
    return supervising.end_alike(code), ""


def _tell(policy: Policy, environment: Mapping[str, str], told: Mapping[str, Any]) -> None:
    """A word that is lost is made up for by the next, or by the end of the lease."""
    with suppress(PlannerError):
        client_of(policy, SYSTEM).bind(*_job(environment), told)


def _job(environment: Mapping[str, str]) -> tuple[str, str]:
    return environment.get("PLANNER_JOB_SYSTEM", SYSTEM), environment.get("PLANNER_JOB_ID", "")


def _now() -> str:
    return datetime.now(UTC).isoformat()


def become(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """This process becomes the command: its signals and its exit code are the command's own.

    Returns only if that fails, with a shell's exit code and why.
    """
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except (OSError, ValueError) as error:
        return _not_started(command, error)


def _not_started(command: Sequence[str], error: OSError | ValueError) -> tuple[int, str]:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NOT_FOUND, f"{command[0]}: no such command"
    return NOT_EXECUTABLE, f"{command[0]}: {getattr(error, 'strerror', None) or error}"
