"""From a bundle to a decision, by way of the service: what every door does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.admission.client import Client, Pending, UnplannableError, UnreachableError
from planner.admission.decision import Decision, decide, undecided
from planner.admission.policy import Policy
from planner.admission.specs import said
from planner.errors import PlannerError, SettingError


def client_of(policy: Policy, system: str) -> Client:
    """Raises SettingError if no service is set."""
    if not policy.server:
        raise SettingError("no planner service is set", remedy="set PLANNER_SERVER, or server in the policy file")
    return Client(policy.server, policy.token, system=system, timeout_seconds=policy.timeout_seconds)


def ask(bundle: Callable[[], Mapping[str, Any]], policy: Policy, system: str, capacity: int | None = None) -> Decision:
    """What to do with a job. `bundle` makes its bundle, or raises SpecError for a job that cannot be used.

    Raises nothing but SettingError: whatever fails on the way is a decision by the policy.
    """
    client = client_of(policy, system)
    try:
        found = client.plan(bundle(), policy.wait_seconds)
        if isinstance(found, Pending):
            reason = f"the plan is not ready after {policy.wait_seconds:g} s"
            return undecided("pending", policy.pending, reason, found.plan_id)
        return decide(found.plan, capacity, policy)
    except UnreachableError as error:
        return undecided("unreachable", policy.unreachable, error.problem)
    except UnplannableError as error:
        return undecided("unplannable", policy.unplannable, f"the job cannot be planned: {said(error)}")
    except PlannerError as error:
        return undecided("unplannable", policy.unplannable, f"the job's spec cannot be used: {said(error)}")


def bind(policy: Policy, system: str, job_id: str, decision: Decision, told: Mapping[str, Any] | None = None) -> str:
    """Tells the service which plan a job was admitted with; what went wrong, or nothing.

    An admission stands whether or not it can be noted.
    """
    if not decision.plan_id or decision.verdict == "pending":
        return ""
    try:
        client_of(policy, system).bind(system, job_id, {"plan_id": decision.plan_id, **(told or {})})
    except PlannerError as error:
        return f"the job is not bound to its plan: {error.problem}"
    return ""
