"""Decides from a plan's JSON or a lower bound, and the operator's policy: one action, one reason, one remedy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planner.admission.policy import Answer, Policy
from planner.errors import PlannerError
from planner.hardware import catalog
from planner.job.bound.lower_bound import Bound, lower_bound
from planner.job.kinds import ANY, Kind
from planner.job.loading import load_bundle
from planner.job.schema import Job
from planner.records import from_plain, shape, to_plain
from planner.report.statement import USUAL_RISK, change_text
from planner.report.verdict_text import chance
from planner.searching.axes import apply, fault_of
from planner.truth.calibration.risk import hangs_on_interval, upper_end
from planner.units import show_bytes


def bound_of(bundle: Mapping[str, Any]) -> Bound | None:
    """None for a bundle that cannot be read: whoever plans says what is wrong with it."""
    try:
        return lower_bound(load_bundle(bundle))
    except PlannerError:
        return None


PLAN_SCHEMA = "planner.plan/1"
RUN_SCHEMA = "planner.run/1"
SCHEMA = "planner.admission/1"
_WORST_LAST = ("fits", "tight", "exceeds")


class Action(StrEnum):
    """What a hook does."""

    ADMIT = "admit"
    WARN = "warn"
    """Let the job through and say why it should not be."""
    HOLD = "hold"
    """Keep the job waiting where the system can, else refuse it for now. Never of a plan that is there."""
    REFUSE = "refuse"


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
        return f"planner: the smallest change {which}: {self.change}" if self.change else ""

    def to_json(self) -> dict[str, str]:
        """One object for hooks that are not written in Python."""
        return {"schema": SCHEMA, **to_plain(self)}


def decide(plan: Mapping[str, Any], capacity: int | None, policy: Policy) -> Decision:
    """What to do with the job of this plan (a `planner.plan/1`, or a `planner.run/1` document).

    `capacity` is what a process may use of the GPU at hand, in bytes; None: of the GPU that the plan was made for.
    Raises PlannerError if the document is no plan.
    """
    try:
        if policy.risk:
            plan = {**plan, "rank_classes": [_judge_at_risk(each, policy.risk) for each in plan["rank_classes"]]}
        if (
            plan["schema"] == RUN_SCHEMA
        ):  # of a program that was run there is no spec, and no change of it that would fit
            job = {"metadata": plan["metadata"], "cluster": {"gpu": plan["gpu"]}}
            plan = {**plan, "schema": PLAN_SCHEMA, "job": job, "advice": []}
        return _decide(plan, capacity, policy)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlannerError(f"the plan cannot be read: {type(error).__name__} {error}", allowed=PLAN_SCHEMA) from error


def decide_by_bound(bundle: Mapping[str, Any], least: int, capacity: int, policy: Policy, plan_id: str) -> Decision:
    """What to do with a job that takes more than its GPU has, whatever its plan will say: what `exceeds` says.

    It holds without a calibration too: what is named is counted, not predicted.
    """
    name = _one_line((bundle.get("metadata") or {}).get("name") or "the job")
    over, gpu = show_bytes(least - capacity), _one_line(_gpu(bundle))
    reason = (
        f"{name} does not fit: a rank needs at least {show_bytes(least)}, {over} more than the {show_bytes(capacity)} "
        f"of {gpu} (parameters, optimizer state, CUDA context, and gradients or what a forward saves)"
        f"{_slices_with(_gpu(bundle), least)}"
    )
    action = Action(policy.exceeds.value)
    change = _change_by_bound(bundle, capacity)
    return Decision(action=action, reason=reason, change=change, plan_id=plan_id, verdict="exceeds", by_bound=True)


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
    if replicas > 1 and parallel.dp_shard.degree == 1 and parallel.deepspeed is None:
        changes.append({"parallel.dp_replicate.degree": 1, "parallel.dp_shard.degree": replicas})
    return changes


def _slices_with(name: str, least: int) -> str:
    """Of a MIG slice: the first of its GPU that has at least so many bytes; whether the job fits there is not said."""
    part = catalog.by_name(name)
    if part is None or not part.slice:
        return ""
    smallest = next(catalog.parts_with(part, least), None)
    return f"; the smallest with as much is {smallest.name}" if smallest else f"; not even {part.whole} has as much"


def decide_without_verdict(verdict: str, answer: Answer, reason: str, plan_id: str = "") -> Decision:
    """A job without a verdict, by the policy for that: admitting it is a warning."""
    action = Action.WARN if answer is Answer.ADMIT else Action(answer.value)
    tails = {Action.WARN: "; admitted unchecked", Action.HOLD: "; submit it again in a moment", Action.REFUSE: ""}
    return Decision(action=action, reason=reason + tails[action], plan_id=plan_id, verdict=verdict)


def _decide(plan: Mapping[str, Any], capacity: int | None, policy: Policy) -> Decision:
    if plan["schema"] != PLAN_SCHEMA:
        raise ValueError(f"of schema {plan['schema']!r}")
    verdict, worst = max(
        ((_verdict(rank_class, capacity), rank_class) for rank_class in plan["rank_classes"]),
        key=lambda judged: (_WORST_LAST.index(judged[0]), -_headroom(judged[1], capacity)),
    )
    pool = plan.get("pool") or {}
    together = str(pool.get("verdict") or "fits")
    if _WORST_LAST.index(together) > _WORST_LAST.index(verdict):
        return _decide_by_pool(plan, pool, together, policy)
    host = plan.get("host") or {}
    on_host = str(host.get("verdict") or "fits")
    if _WORST_LAST.index(on_host) > _WORST_LAST.index(verdict):
        return _decide_by_host(plan, host, on_host, policy)
    calibrated = plan["calibrated"] is True
    # What exceeds by its bound exceeds for sure: the same job was refused while its plan was still to be made.
    bound = bound_of(plan["job"]) if verdict == "exceeds" else None
    by_bound = bound is not None and bound.least_bytes > (bound.capacity_bytes if capacity is None else capacity)
    action = _action(verdict, calibrated or by_bound, policy)
    # What was proven to fit on one GPU is not proven for another.
    fitting = _smallest(plan["advice"], capacity) if verdict == "exceeds" else ""
    reason = _reason(plan, worst, verdict, capacity)
    if verdict == "exceeds" and action is Action.WARN and not calibrated and policy.exceeds is Answer.REFUSE:
        reason += "; not refused, since nothing was measured on this GPU and torch"
    return Decision(action=action, reason=reason, change=fitting, plan_id=plan["plan_id"], verdict=verdict)


def _decide_by_host(plan: Mapping[str, Any], host: Mapping[str, Any], verdict: str, policy: Policy) -> Decision:
    """The GPUs have the room, and the fullest node's main memory has not. Sure is what the interval's lower end says:
    what is only assumed is left out there."""
    capacity = int(host["capacity_bytes"])
    node = max(host["nodes"], key=lambda node: int(node["peak"]["bytes"]))
    peak, name = node["peak"], _one_line(plan["job"].get("metadata", {}).get("name") or "the job")
    low, high = (int(bound) for bound in peak["interval_bytes"])
    needs, has = show_bytes(int(peak["bytes"])), show_bytes(capacity)
    where = f"node {_one_line(node['nodes'])} (ranks {_one_line(node['ranks'])})"
    when = f"{peak['phase'].replace('_', ' ')} of iteration {peak['iteration']}" if peak["iteration"] else peak["phase"]
    certain = low > capacity
    action = _action(verdict, certain, policy)
    if verdict == "tight":
        most = show_bytes(max(high, int(peak["bytes"]) + int(node["file_bytes"])))
        reason = f"{name} is tight on the host: {where} takes {needs}, at most {most}, of {has} main memory ({when})"
    else:
        over = show_bytes(int(peak["bytes"]) - capacity)
        reason = (
            f"{name} does not fit: {where} needs {needs} main memory, {over} more than the {has} there are ({when})"
        )
        if action is Action.WARN and policy.exceeds is Answer.REFUSE:
            reason += "; not refused, since it hinges on what is assumed of CUDA's libraries"
    fitting = _smallest(plan["advice"], None) if verdict == "exceeds" else ""
    return Decision(action=action, reason=reason, change=fitting, plan_id=plan["plan_id"], verdict=verdict)


def _decide_by_pool(plan: Mapping[str, Any], pool: Mapping[str, Any], verdict: str, policy: Policy) -> Decision:
    """Device and host share their memory, and it is only together that they take too much. Certain is what exceeds: the
    system gets no OOM kill to save it."""
    name = _one_line(plan["job"].get("metadata", {}).get("name") or "the job")
    device, host, has, system = (
        show_bytes(int(pool[f"{part}_bytes"])) for part in ("device", "host", "capacity", "system")
    )
    when = f"{pool['phase'].replace('_', ' ')} of iteration {pool['iteration']}" if pool["iteration"] else pool["phase"]
    shares = f"{device} on the device and {host} on the host of {_one_line(_gpu(plan['job']))} ({when})"
    left = int(pool["headroom_bytes"])
    share = f"the {has} that both share, {system} for the system"
    if verdict == "tight":
        reason = f"{name} is tight: {shares} leave {show_bytes(left)} of {share}"
    else:
        over = f"{show_bytes(-left)} more than" if left < 0 else "more than"
        reason = f"{name} does not fit: {shares} take {over} {share}; a host without memory stops without an OOM kill"
    fitting = _smallest(plan["advice"], None) if verdict == "exceeds" else ""
    action = _action(verdict, verdict == "exceeds", policy)
    return Decision(action=action, reason=reason, change=fitting, plan_id=plan["plan_id"], verdict=verdict)


def _judge_at_risk(rank_class: Mapping[str, Any], risk: float) -> Mapping[str, Any]:
    """A rank class of a plan as `planner.truth.calibration.risk` judges it; one without a kind, of a plan that was made
    before there were any, as a job of which nothing is known."""
    kind = from_plain(Kind, rank_class.get("kind") or to_plain(ANY), "kind")
    peak, capacity, verdict = rank_class["peak"], rank_class["capacity_bytes"], str(rank_class["verdict"])
    low, high = peak["interval_bytes"]
    highest = upper_end(kind, peak["reserved_bytes"], high, risk)
    others = rank_class.get("cache_releases", 0), rank_class.get("judged_iterations", 0)
    if hangs_on_interval(verdict, peak["device_bytes"], capacity, *others):
        verdict = "tight" if highest > capacity else "fits"
    return {**rank_class, "peak": {**peak, "interval_bytes": [low, highest]}, "verdict": verdict, "risk": risk}


def _verdict(rank_class: Mapping[str, Any], capacity: int | None) -> str:
    """Of another GPU's capacity by what the plan holds for sure: reserved bytes beyond the allocated are elastic."""
    if capacity is None or capacity == rank_class["capacity_bytes"]:
        verdict = str(rank_class["verdict"])
        if verdict not in _WORST_LAST:
            raise ValueError(f"the verdict {verdict!r}")
        return verdict
    peak = rank_class["peak"]
    outside = peak["device_bytes"] - peak["reserved_bytes"]
    if peak["allocated_bytes"] + outside > capacity:
        return "exceeds"
    return "tight" if max(peak["device_bytes"], peak["interval_bytes"][1]) > capacity else "fits"


def _headroom(rank_class: Mapping[str, Any], capacity: int | None) -> int:
    has = rank_class["capacity_bytes"] if capacity is None else capacity
    return int(has) - int(rank_class["peak"]["device_bytes"])


def _action(verdict: str, certain: bool, policy: Policy) -> Action:
    """`certain`: it was measured on such a GPU, or needs no measurement."""
    if verdict == "fits":
        return Action.ADMIT
    wanted = policy.tight if verdict == "tight" else policy.exceeds
    if wanted is Answer.REFUSE and not certain and not policy.refuse_uncalibrated:
        return Action.WARN
    return Action(wanted.value)


def _reason(plan: Mapping[str, Any], worst: Mapping[str, Any], verdict: str, capacity: int | None) -> str:
    peak, headroom = worst["peak"], _headroom(worst, capacity)
    name = _one_line(plan["job"].get("metadata", {}).get("name") or "the job")
    gpu = "the GPU at hand" if capacity is not None else _one_line(_gpu(plan["job"]))
    one = str(worst["ranks"]).isdigit()
    ranks, s = ("rank " if one else "ranks ") + _one_line(worst["ranks"]), "s" if one else ""
    has, needs = show_bytes(worst["capacity_bytes"] if capacity is None else capacity), show_bytes(peak["device_bytes"])
    when = f"{peak['phase'].replace('_', ' ')} of iteration {peak['iteration']}" if peak["iteration"] else peak["phase"]
    when += "" if plan["calibrated"] is True else ", uncalibrated"
    if another := plan.get("another_torch"):
        when += f", planned with torch {_one_line(another['planned_with'])}"
    if verdict in ("fits", "tight"):
        likely = chance(worst.get("risk", USUAL_RISK), show_bytes(peak["interval_bytes"][1]))
        is_so = "fits" if verdict == "fits" else "is tight"
        return f"{name} {is_so}: {ranks} take{s} {needs} of {has} on {gpu} ({when}); {likely}"
    if headroom >= 0:
        return f"{name} does not fit: {ranks} run{s} out of {has} on {gpu}, free in pieces only ({when})"
    over = show_bytes(-headroom)
    return f"{name} does not fit: {ranks} need{s} {needs}, {over} more than the {has} of {gpu} ({when})"


def _gpu(job: Mapping[str, Any]) -> str:
    gpu = job["cluster"]["gpu"]
    if isinstance(gpu, str):
        return gpu
    return str(gpu.get("name") or gpu.get("arch") or "the GPU")


def _smallest(advice: Sequence[Mapping[str, Any]], capacity: int | None) -> str:
    """Of the changes that fit, the one of the fewest keys; of equals the planner's own order, the cheapest first."""
    fitting = [change for change in advice if capacity is None or change["device_bytes"] <= capacity]
    if not fitting:
        return ""
    best = min(fitting, key=lambda change: (len(change["change"]), change["verdict"] != "fits"))
    return f"{_one_line(change_text(best['change']))} (then {show_bytes(best['device_bytes'])})"


def _one_line(text: object) -> str:
    """What a job calls itself ends in terminals and logs: printable, and not long."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))[:200]
