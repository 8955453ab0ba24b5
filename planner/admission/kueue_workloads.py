"""Reads admission checks from a Kueue Workload and writes its status: pure, for v1beta1 and v1beta2.

Fields and meanings are those of Kueue v0.19.2, apis/kueue/v1beta2/workload_types.go; v1beta1 has the same ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.admission.decision import Decision
from planner.admission.kubernetes import JOB, PLAN, carries_spec
from planner.admission.kubernetes_api import number, part, parts
from planner.admission.policy import Action
from planner.admission.workload_kinds import JobPods, is_gpu_resource, pods_of
from planner.errors import SpecError
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
        return str(self._metadata.get("name", ""))

    @property
    def namespace(self) -> str:
        return str(self._metadata.get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(self._metadata.get("uid", ""))

    @property
    def queue(self) -> str:
        """Its LocalQueue."""
        return str(part(self.document, "spec").get("queueName") or "")

    @property
    def owner(self) -> Owner | None:
        """Its controller; None for a workload that somebody made by hand, or for a group of pods."""
        for owner in parts(self._metadata, "ownerReferences"):
            if owner.get("controller"):
                api_version, kind, name, uid = (
                    str(owner.get(key, "")) for key in ("apiVersion", "kind", "name", "uid")
                )
                return Owner(api_version=api_version, kind=kind, name=name, uid=uid)
        return None

    @property
    def reservation(self) -> str:
        """When quota was reserved for it; empty if none is. Another reservation may have other flavors."""
        for condition in parts(self.document, "status", "conditions"):
            if condition.get("type") == "QuotaReserved" and condition.get("status") == "True":
                return str(condition.get("lastTransitionTime") or "some time ago")
        return ""

    @property
    def asked(self) -> JobPods:
        """What its pod sets ask for, as many as were admitted."""
        admitted = {str(assigned.get("name", "")): assigned.get("count") for assigned in self._assignments}
        pods = []
        for pod_set in self._pod_sets:
            count = admitted.get(str(pod_set.get("name", "")))
            pods.append(pods_of(part(pod_set, "template"), number(pod_set.get("count") if count is None else count, 1)))
        return JobPods(pods=tuple(pods))

    @property
    def asks_for_gpus(self) -> bool:
        """Of any kind; also what is too large to be looked through."""
        try:
            return any(pods.asks for pods in self.asked.pods)
        except SpecError:
            return True

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Of the first pod template that carries a spec; Kueue does not copy those of the job itself."""
        return next(filter(carries_spec, map(_pod_annotations, self._pod_sets)), {})

    @property
    def gpu_flavors(self) -> tuple[str, ...]:
        """The ResourceFlavors that its GPUs come from, each once."""
        named = (item for assigned in self._assignments for item in part(assigned, "flavors").items())
        flavors = (flavor for resource, flavor in named if is_gpu_resource(str(resource)))
        return tuple(dict.fromkeys(flavor for flavor in flavors if isinstance(flavor, str)))

    def waits_for(self, checks: Iterable[str]) -> list[str]:
        """Which of these checks it has not got an answer from. None as long as no quota is reserved for it."""
        if not self.reservation or self._metadata.get("deletionTimestamp"):
            return []
        ours = set(checks)
        return [check["name"] for check in self._checks if check["name"] in ours and check.get("state") == "Pending"]

    def write_answers(
        self, checks: Iterable[str], decision: Decision, notes: Sequence[str], now: str, job_id: str
    ) -> dict[str, Any]:
        """The document to apply: the answer of those of our checks that wait, and the others of ours as they are,
        since what an applied document leaves out is taken away. The resourceVersion makes it one of this very state.

        `job_id` is told to the pods, with the plan.
        """
        answer: dict[str, Any] = {
            "state": _STATES[decision.action],
            "message": message_of(decision, notes),
            "lastTransitionTime": now,
        }
        links = {PLAN: decision.plan_id, JOB: job_id} if decision.plan_id else {}
        updates = []
        for pod_set in self._pod_sets:
            # The callback in the training reads them. A key that is there already would make Kueue refuse the workload.
            there = _pod_annotations(pod_set)
            if fresh := {key: value for key, value in links.items() if value and key not in there}:
                updates.append({"name": pod_set.get("name") or "main", "annotations": fresh})
        if updates and answer["state"] == "Ready":
            answer["podSetUpdates"] = updates
        ours, entries = set(checks), []
        for check in self._checks:
            if check["name"] in ours and check.get("state") == "Pending":
                retries = check.get("retryCount")
                retries = retries if isinstance(retries, int) and 0 <= retries < 16 else 0
                seconds = min(RETRY_SECONDS * 2**retries, MOST_RETRY_SECONDS)
                again = {"requeueAfterSeconds": seconds} if answer["state"] == "Retry" else {}
                entries.append({"name": check["name"], **answer, **again})
            elif check["name"] in ours:
                entries.append({key: value for key, value in check.items() if key != "retryCount"})
        metadata = {name: self._metadata.get(name) for name in ("name", "namespace", "uid", "resourceVersion")}
        return {
            "apiVersion": self.document.get("apiVersion") or f"{GROUP}/{VERSIONS[0]}",
            "kind": "Workload",
            "metadata": {name: value for name, value in metadata.items() if value},
            "status": {"admissionChecks": entries},
        }

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return part(self.document, "metadata")

    @property
    def _checks(self) -> list[Mapping[str, Any]]:
        checks = parts(self.document, "status", "admissionChecks")
        return [check for check in checks if isinstance(check.get("name"), str)]

    @property
    def _assignments(self) -> list[Mapping[str, Any]]:
        return parts(self.document, "status", "admission", "podSetAssignments")

    @property
    def _pod_sets(self) -> list[Mapping[str, Any]]:
        return parts(self.document, "spec", "podSets")


def _pod_annotations(pod_set: Mapping[str, Any]) -> Mapping[str, Any]:
    return part(pod_set, "template", "metadata", "annotations")


def message_of(decision: Decision, notes: Sequence[str]) -> str:
    """For the owner of the job: the decision, and what it stands on."""
    if decision.action is Action.HOLD:  # the other hooks cannot wait; this one can
        reason = decision.reason.partition("; submit it again")[0]
        decision = dataclasses.replace(decision, reason=f"{reason}; Kueue asks again by itself")
    return "\n".join([decision.text, *(f"planner: {note}" for note in notes)])[:_LONGEST_MESSAGE]


def gpu_of_flavor(flavor: Mapping[str, Any]) -> str:
    """The catalog's name of the GPU in a ResourceFlavor's nodes; empty if that is not known."""
    named = part(flavor, "metadata", "annotations").get(GPU_ANNOTATION)
    product = part(flavor, "spec", "nodeLabels").get(catalog.PRODUCT_LABEL)
    if isinstance(named, str):
        known = catalog.by_name(named)
    else:
        known = catalog.by_node_label(product) if isinstance(product, str) else None
    return known.name if known else ""


def smallest_gpu(flavors: Sequence[str], gpu_of: Callable[[str], str]) -> tuple[str, list[str]]:
    """The GPU that a job has to fit on when its pods come from these flavors, empty if the flavors do not say; and
    what its owner should know about that."""
    known = {flavor: gpu for flavor in flavors if (gpu := gpu_of(flavor))}
    notes = [f"flavor {flavor} has no GPU that planner knows" for flavor in flavors if flavor not in known]
    if not known:
        return "", [f"{note}: planned as the spec says" for note in notes]
    flavor, gpu = min(known.items(), key=lambda item: _total_bytes(item[1]))
    return gpu, [f"planned on {gpu}, the GPU of flavor {flavor}", *notes]


def _total_bytes(gpu: str) -> int:
    known = catalog.by_name(gpu)
    return known.total_bytes if known is not None else 0


def active_condition(check: Mapping[str, Any], now: str) -> dict[str, Any] | None:
    """The condition that an AdmissionCheck needs for its ClusterQueues to admit anything; None if it has it."""
    generation = part(check, "metadata").get("generation", 1)
    wanted = {"type": "Active", "status": "True", "reason": "Active", "observedGeneration": generation}
    for condition in parts(check, "status", "conditions"):
        if condition.get("type") == "Active":
            if wanted.items() <= dict(condition).items():
                return None
            if condition.get("status") == "True" and condition.get("lastTransitionTime"):
                now = condition["lastTransitionTime"]
    return {**wanted, "message": "planner answers for this check", "lastTransitionTime": now}
