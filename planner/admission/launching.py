"""The door in front of any launcher: `planner check JOB.yaml -- torchrun ...` becomes the command, if it may run."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence

from planner.admission.asking import bind
from planner.admission.decision import Decision
from planner.admission.policy import Policy
from planner.measuring.job_reports import job_of

SYSTEM = "launcher"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""As shells report them."""
USUAL = {"refuse_uncalibrated": True}
"""Whoever puts this door in front of a command asks for a refusal; an operator's file may say otherwise."""


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
    return bind(policy, environment.get("PLANNER_JOB_SYSTEM", SYSTEM), environment.get("PLANNER_JOB_ID", ""), decision)


def become(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """This process becomes the command: its signals and its exit code are the command's own.

    Returns only if that fails, with a shell's exit code and why.
    """
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except (FileNotFoundError, NotADirectoryError):
        return NOT_FOUND, f"{command[0]}: no such command"
    except (OSError, ValueError) as error:
        return NOT_EXECUTABLE, f"{command[0]}: {getattr(error, 'strerror', None) or error}"
