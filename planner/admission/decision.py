"""Decides from a plan or a lower bound, and the operator's policy: one action, one reason, one remedy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.admission.policy import Action, Policy
from planner.errors import PlannerError
from planner.hardware import catalog
from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.loading import load_bundle
from planner.job.schema import Job
from planner.records import shape, to_plain
from planner.report.statement import Plan, Verdict, change_text, gpu_of
from planner.report.verdict_text import (
    bound_sentence,
    host_decides,
    is_smallest,
    job_sentence,
    pool_decides,
    smallest_change,
)
from planner.searching.axes import apply, fault_of
from planner.truth.calibration.recorded_errors import judge_at_risk
from planner.units import show_bytes

SCHEMA = "planner.admission/1"
_LONGEST = 1000


def bound_of(bundle: Mapping[str, Any]) -> Bound | None:
    """None for a bundle that cannot be read: the service says what is wrong with it."""
    try:
        return lower_bound(load_bundle(bundle))
    except PlannerError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with a job and what to tell its owner. `verdict` also says why there is none."""

    action: Action
    verdict: str = ""
    """`fits`, `tight`, `exceeds`; or `pending`, `unreachable`, `unplannable`, `unplanned`."""
    plan_id: str = ""
    reason: str
    """One line: what does not fit, by how much, on which rank."""
    change: str = ""
    """The smallest change that a plan has shown to fit, or with `by_bound` whose lower bound does; empty where none is
    needed or none is known."""
    is_smallest: bool = field(default=True, metadata=shape(skip=True))
    """False: there was no time to plan all changes."""
    by_bound: bool = field(default=False, metadata=shape(skip=True))
    """Whether the verdict stands on the job's lower bound: then the plan of that id may not be made yet."""

    @property
    def admits(self) -> bool:
        return self.action in (Action.ADMIT, Action.WARN)

    @property
    def text(self) -> str:
        """For the owner of the job: one line, and a second one with the way out."""
        prefixes = {
            Action.ADMIT: "planner: ",
            Action.WARN: "planner: warning: ",
            Action.HOLD: "planner: not yet: ",
            Action.REFUSE: "planner: refused: ",
        }
        return "\n".join(filter(None, (prefixes[self.action] + self.reason, self.way_out)))

    @property
    def way_out(self) -> str:
        """The line with the change; empty without one."""
        which = "that may fit, by its lower bound" if self.by_bound else "that fits"
        which = f"the smallest change {which}" if self.is_smallest else f"a change {which}, perhaps not the smallest"
        return f"planner: {which}: {self.change}" if self.change else ""

    def to_json(self) -> dict[str, str]:
        """One object for hooks that are not written in Python."""
        return {"schema": SCHEMA, **to_plain(self)}


def decide(plan: Plan, policy: Policy) -> Decision:
    """What to do with the job of this plan; for a program no change is known that would fit.

    Raises PlannerError for a plan without ranks."""
    if not plan.rank_classes:
        raise PlannerError("the plan has no ranks")
    if policy.risk:
        plan = judge_at_risk(plan, policy.risk)
    verdict = plan.verdict
    missing = ""
    if pool_decides(plan):
        certain = verdict is Verdict.EXCEEDS  # no OOM kill saves a system whose memory is shared
    elif host_decides(plan):
        certain = True  # a lower bound is more than there is
    else:
        # What exceeds by its bound exceeds for sure: the same job was refused while its plan was still to be made.
        bound = bound_of(plan.job) if plan.job and verdict is Verdict.EXCEEDS else None
        certain = plan.calibrated or (bound is not None and bound.least_bytes > bound.capacity_bytes)
        missing = "" if plan.calibrated else "nothing was measured on this GPU and torch"
    action = _action(verdict, certain, policy)
    reason = _printable(job_sentence(plan))
    if verdict is Verdict.EXCEEDS and action is Action.WARN and policy.exceeds is Action.REFUSE and missing:
        reason += f"; not refused, since {missing}"
    smallest = smallest_change(plan.advice) if verdict is Verdict.EXCEEDS else None
    change = ""
    if smallest is not None:
        change = _printable(f"{change_text(smallest.change)} (then {show_bytes(smallest.device_bytes)})")
    return Decision(
        action=action, reason=reason, change=change, is_smallest=is_smallest(plan), plan_id=plan.plan_id,
        verdict=verdict.value,
    )  # fmt: skip


def _action(verdict: Verdict, certain: bool, policy: Policy) -> Action:
    if verdict is Verdict.FITS:
        return Action.ADMIT
    wanted = policy.tight if verdict is Verdict.TIGHT else policy.exceeds
    if wanted is Action.REFUSE and not certain and not policy.refuse_uncalibrated:
        return Action.WARN
    return wanted


def _printable(text: str) -> str:
    """What a job calls itself ends in terminals and logs."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:_LONGEST]


def decide_by_bound(bundle: Mapping[str, Any], least: int, capacity: int, policy: Policy, plan_id: str) -> Decision:
    """What to do with a job that takes more than its GPU has, whatever its plan will say: what `exceeds` says.

    It holds without a calibration too: what is named is counted, not predicted.
    """
    return Decision(
        action=policy.exceeds,
        reason=_printable(bound_sentence(bundle, least, capacity)) + _slices_with(gpu_of(bundle), least),
        change=_change_by_bound(bundle, capacity),
        plan_id=plan_id,
        verdict="exceeds",
        by_bound=True,
    )


def _change_by_bound(bundle: Mapping[str, Any], capacity: int) -> str:
    """Of the usual changes, and all of them together, the fewest after which the lower bound is below the capacity, the
    cheapest for the training first; else a GPU. No plan has shown any of them to fit."""
    job = load_bundle(bundle)
    for count in range(1, len(_savings(job)) + 1):
        for together in itertools.combinations(_savings(job), count):
            change = {key: value for each in together for key, value in each.items()}
            changed = apply(job, change)
            least = lower_bound(changed).least_bytes
            if least <= capacity and fault_of(changed) is None:
                return f"{change_text(change)} (then at least {show_bytes(least)})"
    known, least = catalog.by_name(job.cluster.gpu.name), lower_bound(job).least_bytes
    if known is None or known.slice:  # of slices the reason says it
        return ""
    alike = (gpu for gpu in catalog.gpus().values() if gpu.arch[:2] == known.arch[:2])  # sm_90, gfx942
    larger = (gpu for gpu in alike if gpu.total_bytes >= least)
    smallest = min(larger, key=lambda gpu: gpu.total_bytes, default=None)
    return f"cluster.gpu: {smallest.name} (it has {show_bytes(smallest.total_bytes)})" if smallest else ""


def _savings(job: Job) -> list[dict[str, Any]]:
    train, parallel = job.train, job.parallel
    replicas, size = parallel.dp_replicate.degree, train.micro_batch_size
    changes: list[dict[str, Any]] = []
    if train.recompute.mode != "full":
        changes.append({"train.recompute": "full"})
    if size > 1:
        accumulated = {"train.gradient_accumulation_steps": train.gradient_accumulation_steps * size}
        changes.append({"train.micro_batch_size": 1, **accumulated})
    if replicas > 1 and parallel.dp_shard.degree == 1:
        changes.append({"parallel.dp_replicate.degree": 1, "parallel.dp_shard.degree": replicas})
    return changes


def _slices_with(name: str, least: int) -> str:
    """Of a MIG slice: the first of its GPU that has at least so many bytes; whether the job fits there is not said."""
    part = catalog.by_name(name)
    if part is None or not part.slice:
        return ""
    smallest = next(catalog.parts_with(part, least), None)
    return f"; the smallest with as much is {smallest.name}" if smallest else f"; not even {part.whole} has as much"


def decide_without_verdict(verdict: str, wanted: Action, reason: str, plan_id: str = "") -> Decision:
    """A job without a verdict, by the policy for that: admitting it is a warning."""
    action = Action.WARN if wanted is Action.ADMIT else wanted
    tails = {Action.WARN: "; admitted unchecked", Action.HOLD: "; submit it again in a moment", Action.REFUSE: ""}
    return Decision(action=action, reason=reason + tails[action], plan_id=plan_id, verdict=verdict)
