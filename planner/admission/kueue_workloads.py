"""Reads admission checks from a Kueue Workload and writes its status: pure, for v1beta1 and v1beta2.

Fields and meanings are those of Kueue v0.19.2, apis/kueue/v1beta2/workload_types.go; v1beta1 has the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.admission.decision import Action, Decision
from planner.admission.kubernetes import GPU, JOB, PLAN, Pods, carries_spec, number, pods_of
from planner.hardware import catalog

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
CONTROLLER = "planner.dev/fits"
GPU_ANNOTATION = "planner.dev/gpu"
"""Of a ResourceFlavor: a name of the catalog, where its nodes' labels do not say it."""
RETRY_SECONDS, MOST_RETRY_SECONDS = 30, 900
_LONGEST_MESSAGE = 8192
"""Kueue takes 32,768."""
_STATES = {Action.ADMIT: "Ready", Action.WARN: "Ready", Action.HOLD: "Retry", Action.REFUSE: "Rejected"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The job that a workload stands for."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload's document."""

    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(_metadata(self.document).get("name", ""))

    @property
    def namespace(self) -> str:
        return str(_metadata(self.document).get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(_metadata(self.document).get("uid", ""))

    @property
    def queue(self) -> str:
        """Its LocalQueue."""
        return str(_mapping(self.document.get("spec")).get("queueName") or "")

    @property
    def owner(self) -> Owner | None:
        """Its controller; None for a workload that somebody made by hand, or for a group of pods."""
        for each in map(_mapping, _list(_metadata(self.document).get("ownerReferences"))):
            if each.get("controller"):
                said = (str(each.get(name, "")) for name in ("apiVersion", "kind", "name", "uid"))
                return Owner(**dict(zip(("api_version", "kind", "name", "uid"), said, strict=True)))
        return None

    @property
    def reservation(self) -> str:
        """When quota was reserved for it; empty if none is. Another reservation may have other flavors."""
        for each in map(_mapping, _list(self._status.get("conditions"))):
            if each.get("type") == "QuotaReserved" and each.get("status") == "True":
                return str(each.get("lastTransitionTime") or "some time ago")
        return ""

    @property
    def pods(self) -> tuple[Pods, ...]:
        """What its pod sets ask for, as many as were admitted."""
        counts = {str(each.get("name", "")): each.get("count") for each in self._assignments}
        found = []
        for each in map(_mapping, self._pod_sets):
            count = counts.get(str(each.get("name", "")))
            count = each.get("count") if count is None else count
            found.append(pods_of(_mapping(each.get("template")), number(count, 1)))
        return tuple(found)

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Of the first pod template that carries a spec; Kueue does not copy those of the job itself."""
        for each in map(_mapping, self._pod_sets):
            annotations = _mapping(_metadata(_mapping(each.get("template"))).get("annotations"))
            if carries_spec(annotations):
                return annotations
        return {}

    @property
    def gpu_flavors(self) -> tuple[str, ...]:
        """The ResourceFlavors that its GPUs come from, each once."""
        found = (_mapping(each.get("flavors")).get(GPU) for each in self._assignments)
        return tuple(dict.fromkeys(each for each in found if isinstance(each, str)))

    def waits_for(self, checks: Iterable[str]) -> list[str]:
        """Which of these checks it has not got an answer from. None as long as no quota is reserved for it."""
        if not self.reservation or _metadata(self.document).get("deletionTimestamp"):
            return []
        ours = set(checks)
        return [each["name"] for each in self._checks if each["name"] in ours and each.get("state") == "Pending"]

    def write_answers(
        self, checks: Iterable[str], decision: Decision, notes: Sequence[str], now: str, job_id: str
    ) -> dict[str, Any]:
        """The document to apply: the answer of those of our checks that wait, and the others of ours as they are,
        since what an applied document leaves out is taken away. The resourceVersion makes it one of this very state.

        `job_id` is told to the pods, with the plan.
        """
        ours = set(checks)
        entries = []
        for each in self._checks:
            if each["name"] in ours:
                fresh = self._answer(each, decision, notes, now, job_id)
                keep = {key: value for key, value in each.items() if key != "retryCount"}
                entries.append(fresh if each.get("state") == "Pending" else keep)
        metadata = {
            name: _metadata(self.document).get(name) for name in ("name", "namespace", "uid", "resourceVersion")
        }
        return {
            "apiVersion": self.document.get("apiVersion") or f"{GROUP}/{VERSIONS[0]}",
            "kind": "Workload",
            "metadata": {name: value for name, value in metadata.items() if value},
            "status": {"admissionChecks": entries},
        }

    def _answer(
        self, check: Mapping[str, Any], decision: Decision, notes: Sequence[str], now: str, job_id: str
    ) -> dict[str, Any]:
        state = _STATES[decision.action]
        found = {
            "name": check["name"],
            "state": state,
            "message": message_of(decision, notes),
            "lastTransitionTime": now,
        }
        if state == "Retry":
            found["requeueAfterSeconds"] = _retry_seconds(check.get("retryCount"))
        if state == "Ready" and (updates := self._pod_set_updates(decision, job_id)):
            found["podSetUpdates"] = updates
        return found

    def _pod_set_updates(self, decision: Decision, job_id: str) -> list[dict[str, Any]]:
        """Annotations for pods, which the callback in the training reads. A key that is there already would make Kueue
        refuse the workload."""
        told = {PLAN: decision.plan_id, JOB: job_id} if decision.plan_id else {}
        found = []
        for each in map(_mapping, self._pod_sets):
            there = _mapping(_metadata(_mapping(each.get("template"))).get("annotations"))
            fresh = {key: value for key, value in told.items() if value and key not in there}
            if fresh:
                found.append({"name": each.get("name") or "main", "annotations": fresh})
        return found

    @property
    def _status(self) -> Mapping[str, Any]:
        return _mapping(self.document.get("status"))

    @property
    def _checks(self) -> list[Mapping[str, Any]]:
        found = map(_mapping, _list(self._status.get("admissionChecks")))
        return [each for each in found if isinstance(each.get("name"), str)]

    @property
    def _assignments(self) -> list[Mapping[str, Any]]:
        return [_mapping(each) for each in _list(_mapping(self._status.get("admission")).get("podSetAssignments"))]

    @property
    def _pod_sets(self) -> list[Any]:
        return _list(_mapping(self.document.get("spec")).get("podSets"))


def message_of(decision: Decision, notes: Sequence[str]) -> str:
    """For the owner of the job: the decision, and what it stands on."""
    if decision.action is Action.HOLD:  # the other hooks cannot wait; this one can
        reason = decision.reason.partition("; submit it again")[0]
        decision = dataclasses.replace(decision, reason=f"{reason}; Kueue asks again by itself")
    said = "\n".join([decision.text, *(f"planner: {note}" for note in notes)])
    return said[:_LONGEST_MESSAGE]


def gpu_of_flavor(flavor: Mapping[str, Any]) -> str:
    """The catalog's name of the GPU in a ResourceFlavor's nodes; empty if that is not known."""
    named = _mapping(_metadata(flavor).get("annotations")).get(GPU_ANNOTATION)
    if isinstance(named, str):
        known = catalog.by_name(named)
        return known.name if known else ""
    product = _mapping(_mapping(flavor.get("spec")).get("nodeLabels")).get(catalog.PRODUCT_LABEL)
    known = catalog.by_node_label(product) if isinstance(product, str) else None
    return known.name if known else ""


def smallest_gpu(flavors: Sequence[str], gpu_of: Callable[[str], str]) -> tuple[str, list[str]]:
    """The GPU that a job has to fit on when its pods come from these flavors, empty if the flavors do not say; and
    what its owner should know about that."""
    found = {flavor: gpu_of(flavor) for flavor in flavors}
    known = {flavor: gpu for flavor, gpu in found.items() if gpu}
    notes = [f"flavor {flavor} has no GPU that planner knows" for flavor in flavors if flavor not in known]
    if not known:
        return "", [f"{note}: planned as the spec says" for note in notes]
    flavor, gpu = min(known.items(), key=lambda each: catalog.gpus()[each[1]].total_bytes)
    return gpu, [f"planned on {gpu}, the GPU of flavor {flavor}", *notes]


def active_condition(check: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """The condition that an AdmissionCheck needs for its ClusterQueues to admit anything; None if it has it."""
    generation = _metadata(check).get("generation", 1)
    wanted = {"type": "Active", "status": "True", "reason": "Active", "observedGeneration": generation}
    said = {"message": "planner answers for this check"}
    for each in map(_mapping, _list(_mapping(check.get("status")).get("conditions"))):
        if each.get("type") == "Active":
            if wanted.items() <= dict(each).items():
                return None
            if each.get("status") == "True" and each.get("lastTransitionTime"):
                now = each["lastTransitionTime"]
    return {**wanted, **said, "lastTransitionTime": now}


def _retry_seconds(retries: Any) -> int:
    count = retries if isinstance(retries, int) and 0 <= retries < 16 else 0
    return int(min(RETRY_SECONDS * 2**count, MOST_RETRY_SECONDS))


def _metadata(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(document.get("metadata"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
