"""Asks the service about a bundle and decides by its answer, for every hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.admission.client import Client, ExceedsByBound, PlanFound, UnplannableError, UnreachableError
from planner.admission.decision import Decision, bound_of, decide, decide_by_bound, decide_without_verdict
from planner.admission.policy import Policy
from planner.admission.specs import ProgramAsk
from planner.errors import PlannerError, SettingError
from planner.report.statement import from_json


def client_of(policy: Policy, system: str) -> Client:
    """Raises SettingError if no service is set."""
    if not policy.server:
        raise SettingError("no planner service is set", remedy="set PLANNER_SERVER, or server in the policy file")
    return Client(policy.server, policy.token, system=system, timeout_seconds=policy.timeout_seconds)


def ask(bundle: Callable[[], Mapping[str, Any]], policy: Policy, system: str) -> Decision:
    """What to do with a job. `bundle` makes its bundle, or raises SpecError for a job that cannot be used and
    UnreachableError for one that cannot be read now.

    Raises nothing but SettingError: whatever fails on the way is a decision by the policy. A job that exceeds by its
    lower bound is no such failure: that is known without a plan, and without a service.
    """
    client = client_of(policy, system)
    unusable = "the job's spec cannot be used"
    try:
        job = bundle()
    except PlannerError as error:
        return _decide_on_failure(error, unusable, policy)
    try:
        plan = client.plan(job, policy.wait_seconds)
        if isinstance(plan, ExceedsByBound) and plan.least_bytes > plan.capacity_bytes:
            return decide_by_bound(job, plan.least_bytes, plan.capacity_bytes, policy, plan.plan_id)
        if isinstance(plan, PlanFound):
            return decide(from_json(plan.plan), policy)
        reason = f"the plan is not ready after {policy.wait_seconds:g} s"
        otherwise = decide_without_verdict("pending", policy.pending, reason, plan.plan_id)
    except (UnreachableError, UnplannableError) as error:  # also one whose trace takes too long: no way in for it
        otherwise = _decide_on_failure(error, "the job cannot be planned", policy)
    except PlannerError as error:
        return _decide_on_failure(error, unusable, policy)
    # By the job's lower bound, as it is known here, if that is too much; else as the policy has it.
    bound = bound_of(job)
    if bound is None or not 0 < bound.capacity_bytes < bound.least_bytes:
        return otherwise
    return decide_by_bound(job, bound.least_bytes, bound.capacity_bytes, policy, otherwise.plan_id)


def _decide_on_failure(error: PlannerError, unusable: str, policy: Policy) -> Decision:
    if isinstance(error, UnreachableError):
        return decide_without_verdict("unreachable", policy.unreachable, error.problem)
    return decide_without_verdict("unplannable", policy.unplannable, f"{unusable}: {error.one_line}")


def ask_run(asked: Callable[[], ProgramAsk], policy: Policy, system: str) -> Decision:
    """What to do with a job whose program the service runs. `asked` makes the question, or raises SpecError.

    As :func:`ask`, but without a spec there is no lower bound: what could not be run is refused by nobody's default.
    """
    client = client_of(policy, system)
    try:
        run = client.run(asked(), policy.wait_seconds)
        if isinstance(run, PlanFound):
            return decide(from_json(run.plan), policy)
    except PlannerError as error:
        return _decide_on_failure(error, "the job's program cannot be run on paper", policy)
    reason = f"the program is not run to its steady state after {policy.wait_seconds:g} s"
    return decide_without_verdict("pending", policy.pending, reason, run.plan_id)


def binds(decision: Decision) -> bool:
    """Whether there is a plan that a job can be bound to."""
    return bool(decision.plan_id) and decision.verdict != "pending" and not decision.by_bound


def bind_new(policy: Policy, system: str, job_id: str, decision: Decision) -> str:
    """As :func:`bind`, for a job that is created only now: one that has a plan already keeps it."""
    if not binds(decision):
        return ""
    try:
        known = client_of(policy, system).plan_id_of_job(system, job_id)
    except PlannerError as error:
        return f"the job is not bound to its plan: {error.problem}"
    if known and known != decision.plan_id:
        return f"the job {job_id[:100]!a} is not bound to {decision.plan_id}: it has the plan {known[:100]!a} already"
    return bind(policy, system, job_id, decision)


def bind(policy: Policy, system: str, job_id: str, decision: Decision, facts: Mapping[str, Any] | None = None) -> str:
    """Tells the service which plan a job was admitted with; what went wrong, or nothing.

    An admission stands whether or not it can be noted.
    """
    if not binds(decision):
        return ""
    try:
        client_of(policy, system).bind(system, job_id, {"plan_id": decision.plan_id, **(facts or {})})
    except PlannerError as error:
        return f"the job is not bound to its plan: {error.problem}"
    return ""
