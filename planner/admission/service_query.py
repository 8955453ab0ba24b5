"""Asks the service about a bundle and decides by its answer, for every hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.admission.client import Client, ExceedsByBound, PlanFound, UnplannableError, UnreachableError
from planner.admission.decision import Decision, bound_of, decide, decide_by_bound, decide_without_verdict
from planner.admission.policy import Policy
from planner.admission.specs import ProgramAsk, message_of
from planner.errors import PlannerError, SettingError


def client_of(policy: Policy, system: str) -> Client:
    """Raises SettingError if no service is set."""
    if not policy.server:
        raise SettingError("no planner service is set", remedy="set PLANNER_SERVER, or server in the policy file")
    return Client(policy.server, policy.token, system=system, timeout_seconds=policy.timeout_seconds)


def ask(bundle: Callable[[], Mapping[str, Any]], policy: Policy, system: str, capacity: int | None = None) -> Decision:
    """What to do with a job. `bundle` makes its bundle, or raises SpecError for a job that cannot be used and
    UnreachableError for one that cannot be read now.

    Raises nothing but SettingError: whatever fails on the way is a decision by the policy. A job that exceeds by its
    lower bound is no such failure: that is known without a plan, and without a service.
    """
    client = client_of(policy, system)
    try:
        job = bundle()
    except UnreachableError as error:  # a ConfigMap that cannot be read now
        return decide_without_verdict("unreachable", policy.unreachable, error.problem)
    except PlannerError as error:
        return decide_without_verdict(
            "unplannable", policy.unplannable, f"the job's spec cannot be used: {message_of(error)}"
        )
    try:
        found = client.plan(job, policy.wait_seconds)
        if isinstance(found, ExceedsByBound):
            has = found.capacity_bytes if capacity is None else capacity
            if found.least_bytes > has:
                return decide_by_bound(job, found.least_bytes, has, policy, found.plan_id)
        if isinstance(found, PlanFound):
            return decide(found.plan, capacity, policy)
        reason = f"the plan is not ready after {policy.wait_seconds:g} s"
        return _without_plan(
            job, capacity, policy, decide_without_verdict("pending", policy.pending, reason, found.plan_id)
        )
    except UnreachableError as error:
        decision = decide_without_verdict("unreachable", policy.unreachable, error.problem)
        return _without_plan(job, capacity, policy, decision)
    except UnplannableError as error:  # also one whose trace takes too long: that is no way in for it
        decision = decide_without_verdict(
            "unplannable", policy.unplannable, f"the job cannot be planned: {message_of(error)}"
        )
        return _without_plan(job, capacity, policy, decision)
    except PlannerError as error:
        return decide_without_verdict(
            "unplannable", policy.unplannable, f"the job's spec cannot be used: {message_of(error)}"
        )


def ask_run(asked: Callable[[], ProgramAsk], policy: Policy, system: str, capacity: int | None = None) -> Decision:
    """What to do with a job whose program the service runs. `asked` makes the question, or raises SpecError.

    As :func:`ask`, but without a spec there is no lower bound: what could not be run is refused by nobody's default.
    """
    client = client_of(policy, system)
    try:
        found = client.run(asked(), policy.wait_seconds)
        if isinstance(found, PlanFound):
            return decide(found.plan, capacity, policy)
    except UnreachableError as error:
        return decide_without_verdict("unreachable", policy.unreachable, error.problem)
    except PlannerError as error:
        return decide_without_verdict(
            "unplannable", policy.unplannable, f"the job's program cannot be run on paper: {message_of(error)}"
        )
    reason = f"the program is not run to its steady state after {policy.wait_seconds:g} s"
    return decide_without_verdict("pending", policy.pending, reason, found.plan_id)


def _without_plan(bundle: Mapping[str, Any], capacity: int | None, policy: Policy, otherwise: Decision) -> Decision:
    """By the job's lower bound, as it is known here, if that is too much; else as the policy has it."""
    bound = bound_of(bundle)
    if bound is None:
        return otherwise
    has = bound.capacity_bytes if capacity is None else capacity
    if not 0 < has < bound.least_bytes:
        return otherwise
    return decide_by_bound(bundle, bound.least_bytes, has, policy, otherwise.plan_id)


def binds(decision: Decision) -> bool:
    """Whether there is a plan that a job can be bound to."""
    return bool(decision.plan_id) and decision.verdict != "pending" and not decision.by_bound


def bind(policy: Policy, system: str, job_id: str, decision: Decision, told: Mapping[str, Any] | None = None) -> str:
    """Tells the service which plan a job was admitted with; what went wrong, or nothing.

    An admission stands whether or not it can be noted.
    """
    if not binds(decision):
        return ""
    try:
        client_of(policy, system).bind(system, job_id, {"plan_id": decision.plan_id, **(told or {})})
    except PlannerError as error:
        return f"the job is not bound to its plan: {error.problem}"
    return ""
