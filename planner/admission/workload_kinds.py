"""The kinds of objects that start training on Kubernetes: where each has its pods, its ranks and its command.

One table, which one function reads; docs/admission.md shows it. A path is written as
`spec.tasks[].template`: `[]` are all items of a list, `*` all values of an object.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.admission.gpu_requests import (
    MODEL,
    MOST_CONTAINERS,
    FindClaim,
    GpuRequest,
    no_claim,
    read_gpu_requests,
    refuse_more,
)
from planner.admission.kubernetes_api import MOST, items, number, part, parts, text_of

_ANY_GPU = re.compile(
    r"(?i)([^/]+/(.*gpu.*|(.*[-.])?(mig-.*|i915.*|xe))|amd[.]com/[a-z]px_nps[0-9]+"
    rf"|(nvidia|amd)[.]com/(.*[-._])?{MODEL}([-._].*)?)"
)
"""Resources that are GPUs or parts of them, of whatever maker: `amd.com/gpu`, `nvidia.com/mig-1g.10gb`. The chart has
the same, for RE2."""
_ASKING = ("limits", "requests")
_MOST_PARTS = 20_000
_MPI = re.compile(r"(?:^|[\s/;&|])(?:mpirun|mpiexec|orterun)(?:\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of the object; `otherwise` where it does not say it, None where another object does."""

    path: str
    otherwise: int | None = 1
    at_least: str = ""
    at_most: str = ""
    """Other numbers, by their paths."""
    less_one_with: str = ""
    """If there is something at this path, it has one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsAt:
    """Pods of one template: as many as the product of `counts`."""

    path: str
    counts: tuple[Count, ...] = ()
    resources: str = ""
    """If what is at the path is a container: what it calls its resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job: where the API has it, and the pods that it will make."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    pods: tuple[PodsAt, ...]
    processes: tuple[str, ...] = ()
    """Paths of how many ranks a pod with GPUs has: the first that says a number. Else there is one for each GPU."""
    processes_otherwise: int = 0
    launcher: str = ""
    """Path of what starts the ranks: a pod template, a container, or a text. Else it is the first container that calls
    mpirun, else the first one that asks for GPUs."""
    tells_torchrun: bool = False
    """Its controller sets PET_NNODES and PET_NPROC_PER_NODE."""
    runtime: str = ""
    """Path of a reference to an object that says what this one leaves out."""
    note: str = ""
    """For the table of the docs."""


def _ray(spec: str) -> tuple[PodsAt, ...]:
    """Workers as KubeRay counts them (ray-operator/controllers/ray/utils/util.go, GetWorkerGroupDesiredReplicas)."""
    group = f"{spec}.workerGroupSpecs[]"
    replicas = Count(
        path=f"{group}.replicas", otherwise=0, at_least=f"{group}.minReplicas", at_most=f"{group}.maxReplicas"
    )
    return (
        PodsAt(path=f"{spec}.headGroupSpec.template"),
        PodsAt(path=f"{group}.template", counts=(replicas, Count(path=f"{group}.numOfHosts"))),
    )


_JOBS = "spec.replicatedJobs[]"
_GROUP = "spec.leaderWorkerTemplate"
# Paths, defaults and who sets which variables: kubeflow/trainer@8c0f505 (pkg/apis/trainer/v1alpha1/trainjob_types.go,
# pkg/runtime/framework/plugins/torch/torch.go), kubeflow/training-operator v1.9 (pkg/apis/kubeflow.org/v1,
# pkg/controller.v1/pytorch/envvar.go), kubeflow/mpi-operator@caa3c47, ray-project/kuberay@feeaf72,
# kubernetes-sigs/jobset@08dfbdf, volcano-sh/volcano@ed72c7c, kubernetes-sigs/lws@060ab4d: their CRDs.
_TABLE = (
    Kind(group="", versions=("v1",), kind="Pod", plural="pods", pods=(PodsAt(path=""),)),
    Kind(
        group="batch", versions=("v1",), kind="Job", plural="jobs",
        pods=(PodsAt(path="spec.template", counts=(Count(path="spec.parallelism", at_most="spec.completions"),)),),
    ),
    Kind(
        group="jobset.x-k8s.io", versions=("v1alpha2",), kind="JobSet", plural="jobsets",
        pods=(
            PodsAt(
                path=f"{_JOBS}.template.spec.template",
                counts=(
                    Count(path=f"{_JOBS}.replicas"),
                    Count(path=f"{_JOBS}.template.spec.parallelism", at_most=f"{_JOBS}.template.spec.completions"),
                ),
            ),
        ),
    ),
    Kind(
        group="trainer.kubeflow.org", versions=("v1alpha1",), kind="TrainJob", plural="trainjobs",
        pods=(
            PodsAt(
                path="spec.trainer", counts=(Count(path="spec.trainer.numNodes", otherwise=None),),
                resources="resourcesPerNode",
            ),
        ),
        processes=("spec.trainer.numProcPerNode",), launcher="spec.trainer", tells_torchrun=True,
        runtime="spec.runtimeRef", note="what only its runtime says is not read, and is named in the answer",
    ),
    Kind(
        group="kubeflow.org", versions=("v1",), kind="PyTorchJob", plural="pytorchjobs",
        pods=(
            PodsAt(
                path="spec.pytorchReplicaSpecs.*.template", counts=(Count(path="spec.pytorchReplicaSpecs.*.replicas"),)
            ),
        ),
        processes=("spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode"), tells_torchrun=True,
    ),
    Kind(
        group="kubeflow.org", versions=("v2beta1", "v1"), kind="MPIJob", plural="mpijobs",
        pods=(PodsAt(path="spec.mpiReplicaSpecs.*.template", counts=(Count(path="spec.mpiReplicaSpecs.*.replicas"),)),),
        processes=("spec.slotsPerWorker",), processes_otherwise=1, launcher="spec.mpiReplicaSpecs.Launcher.template",
    ),
    Kind(
        group="ray.io", versions=("v1",), kind="RayJob", plural="rayjobs", pods=_ray("spec.rayClusterSpec"),
        launcher="spec.entrypoint", note="with clusterSelector it has no pods of its own",
    ),
    Kind(
        group="ray.io", versions=("v1",), kind="RayCluster", plural="rayclusters", pods=_ray("spec"),
        note="jobs that are submitted to it later are not seen",
    ),
    Kind(
        group="batch.volcano.sh", versions=("v1alpha1",), kind="Job", plural="jobs",
        pods=(PodsAt(path="spec.tasks[].template", counts=(Count(path="spec.tasks[].replicas", otherwise=0),)),),
    ),
    Kind(
        group="leaderworkerset.x-k8s.io", versions=("v1",), kind="LeaderWorkerSet", plural="leaderworkersets",
        pods=(
            PodsAt(path=f"{_GROUP}.leaderTemplate"),
            PodsAt(
                path=f"{_GROUP}.workerTemplate",
                counts=(Count(path=f"{_GROUP}.size", less_one_with=f"{_GROUP}.leaderTemplate"),),
            ),
        ),
        note="one group is the job, however many `replicas` there are",
    ),
)  # fmt: skip
KINDS: Mapping[tuple[str, str], Kind] = {(kind.group, kind.kind): kind for kind in _TABLE}
"""By group and kind."""
GPUS = "GPUs"
_LWS_LABEL = "leaderworkerset.sigs.k8s.io/name"
"""On the pods of a LeaderWorkerSet: their owner is a StatefulSet (kubernetes-sigs/lws, leaderworkerset_types.go)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """So many equal pods, and what each of them asks for; 0 where another object says how many."""

    count: int
    requests: tuple[GpuRequest, ...] = ()
    """For GPUs, of its containers."""
    processes: int = 0
    """Ranks in each; 0: one for each GPU."""
    command: tuple[str, ...] = ()
    """Of the container that calls mpirun, else of the first that asks for GPUs; as far as it says one."""
    asks: bool = field(default=False, compare=False)
    """For a GPU of any kind, also one that is not counted."""
    unread: tuple[str, ...] = field(default=(), compare=False)
    """Resources that are GPUs, and claims, of containers of which no request could be read."""

    @property
    def gpus(self) -> int:
        """GPUs, or parts of so many, of each."""
        return min(sum(request.count for request in self.requests), MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPods:
    """What an object says of its pods, and what it leaves to its `runtime` to say."""

    pods: tuple[Pods, ...] = ()
    command: tuple[str, ...] = ()
    runtime: str = ""
    unsaid: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs, or parts of so many, of all pods together."""
        return sum(pods.count * pods.gpus for pods in self.pods)

    @property
    def ranks(self) -> int:
        """The world size: pods without GPUs start or serve the others."""
        return sum(pods.count * (pods.processes or pods.gpus) for pods in self.pods if pods.gpus)

    @property
    def requests(self) -> tuple[GpuRequest, ...]:
        """For GPUs, of the containers of all pods."""
        return tuple(request for pods in self.pods for request in pods.requests)

    @property
    def unread(self) -> tuple[str, ...]:
        """Resources and claims whose GPUs are not counted, each once."""
        return tuple(dict.fromkeys(name for pods in self.pods for name in pods.unread))

    @property
    def resources(self) -> tuple[str, ...]:
        """What its GPUs are called, each once."""
        return tuple(dict.fromkeys(request.resource for request in self.requests))

    @property
    def products(self) -> tuple[str, ...]:
        """Which GPUs they are, as labels of nodes and names of resources say it, each once."""
        return tuple(dict.fromkeys(request.product for request in self.requests if request.product))

    @property
    def may_ask_by_runtime(self) -> bool:
        """Whether GPUs that are not in the object may be in its runtime."""
        return GPUS in self.unsaid


def kind_of(api_version: Any, kind: Any) -> Kind | None:
    """The kind of an object or of an owner; None for one that starts no training."""
    return KINDS.get((text_of(api_version).rpartition("/")[0], text_of(kind)))


def read_job_pods(job: Mapping[str, Any], find_claim: FindClaim = no_claim) -> JobPods:
    """The pods, ranks and command of an object of the table; of any other one nothing. Raises SpecError for more of
    them than any training has."""
    kind, version = kind_of(job.get("apiVersion"), job.get("kind")), text_of(job.get("apiVersion")).rpartition("/")[2]
    if kind is None or version not in kind.versions:
        return JobPods()
    pods, containers = [], 0
    for place in kind.pods:
        for passed in _objects_at({"": job}, "", place.path.split(".") if place.path else []):
            template, count = passed[place.path], 1
            if place.resources:
                container = {**template, "resources": part(template, place.resources)}
                template = {"spec": {"containers": [container]}}
            containers += len(items(part(template, "spec").get("containers")))
            refuse_more("containers", containers, MOST_CONTAINERS)
            for number_of in place.counts:
                count = min(count * _count(passed, number_of), MOST)
            said = (number(_value_at(passed, path), 0) for path in kind.processes)
            processes = next(filter(None, said), kind.processes_otherwise)
            pods.append(pods_of(template, count, processes, find_claim))
    command = _command_at(job, kind.launcher) or _command_of(pods)
    runtime = part(job, *kind.runtime.split(".")) if kind.runtime else {}
    return JobPods(
        pods=tuple(pods),
        command=_told_torchrun(kind, pods, command),
        runtime=f"{text_of(runtime.get('kind')) or 'runtime'} {text_of(runtime.get('name'))}" if kind.runtime else "",
        unsaid=tuple(_unsaid(kind, job, command)) if kind.runtime else (),
    )


def _unsaid(kind: Kind, job: Mapping[str, Any], command: Sequence[str]) -> Iterator[str]:
    """What the object leaves to its runtime: resources that it does not name are added to those it names."""
    for place in kind.pods:
        for count in place.counts:
            if count.otherwise is None and number(_value_at({"": job}, count.path), -1) < 0:
                yield count.path.rpartition(".")[2]
        named = (part(job, *place.path.split("."), place.resources, asking) for asking in _ASKING)
        if not any(is_gpu_resource(str(name)) for resources in named for name in resources):
            yield GPUS
    if not command:
        yield "command"


def pods_of(template: Mapping[str, Any], count: int, processes: int = 0, find_claim: FindClaim = no_claim) -> Pods:
    """So many pods of a template."""
    spec = part(template, "spec")
    requests = read_gpu_requests(spec, part(template, "metadata", "annotations"), find_claim)
    asking = {request.container for request in requests}
    containers = parts(spec, "containers")
    commands = [words for container in containers if _calls_mpi(words := _words(container))]
    commands += [_words(container) for container in containers if text_of(container.get("name")) in asking]
    return Pods(
        count=count,
        requests=requests,
        processes=processes,
        command=next(iter(commands), ()),
        asks=bool(requests) or asks_for_gpus(spec),
        unread=() if requests else tuple(itertools.chain.from_iterable(map(_gpus_named, containers))),
    )


def _gpus_named(container: Mapping[str, Any]) -> Iterator[str]:
    """Resources of a container that are GPUs, and its claims: what they are of, another object says."""
    resources = part(container, "resources")
    for name, count in (item for asking in _ASKING for item in part(resources, asking).items()):
        if is_gpu_resource(str(name)) and str(count) != "0":
            yield f"the resource {name}"
    yield from (f"the claim {text_of(claim.get('name'))}" for claim in parts(resources, "claims"))


def is_part_of_job(metadata: Mapping[str, Any]) -> bool:
    """Whether a controller made it for a job that was asked about, itself or what it is a part of, when it was
    submitted. Not so the pods of a Deployment, or a Job of a CronJob."""
    for owner in parts(metadata, "ownerReferences"):
        if owner.get("controller") is True:
            if kind_of(owner.get("apiVersion"), owner.get("kind")):
                return True
            return owner.get("kind") == "StatefulSet" and _LWS_LABEL in part(metadata, "labels")
    return False


def is_gpu_resource(name: str) -> bool:
    """Whether a resource is a GPU, or a part of one, of whatever maker."""
    return _ANY_GPU.fullmatch(name[:200]) is not None


def asks_for_gpus(document: Any) -> bool:
    """Whether anything in it limits or requests a GPU, or a part of one. What is too large to be looked at does, and
    a claim of Dynamic Resource Allocation: of what, another object says."""
    waiting, looked = [document], 0
    while waiting:
        value = waiting.pop()
        looked += 1
        if looked > _MOST_PARTS:
            return True
        if isinstance(value, dict):
            if items(value.get("claims")):
                return True
            for name, count in (item for asking in _ASKING for item in part(value, asking).items()):
                if is_gpu_resource(str(name)) and str(count) != "0":
                    return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _objects_at(
    passed: dict[str, Mapping[str, Any]], place: str, steps: Sequence[str]
) -> Iterator[dict[str, Mapping[str, Any]]]:
    """For each object at the end of a path: it, and those on the way to it, by their paths."""
    if not steps:
        yield passed
        return
    here, step = passed[place], steps[0]
    further = f"{place}.{step}" if place else step
    name = step.removesuffix("[]")
    values = list(here.values()) if step == "*" else items(here.get(name)) if name != step else [here.get(name)]
    for value in values:
        if isinstance(value, dict):
            yield from _objects_at({**passed, further: value}, further, steps[1:])


def _value_at(passed: Mapping[str, Mapping[str, Any]], path: str) -> Any:
    """What is at a path, some object of which was passed."""
    beyond: list[str] = []
    while path not in passed:
        path, _, name = path.rpartition(".")
        beyond.insert(0, name)
    *objects, last = beyond
    return part(passed[path], *objects).get(last)


def _count(passed: Mapping[str, Mapping[str, Any]], count: Count) -> int:
    value = number(_value_at(passed, count.path), count.otherwise or 0)
    if count.at_least:
        value = max(value, number(_value_at(passed, count.at_least), value))
    if count.at_most:
        value = min(value, number(_value_at(passed, count.at_most), value))
    if count.less_one_with and isinstance(_value_at(passed, count.less_one_with), dict):
        value -= 1
    return max(value, 0)


def _words(container: Mapping[str, Any]) -> tuple[str, ...]:
    words = [*items(container.get("command")), *items(container.get("args"))]
    return tuple(words) if all(isinstance(word, str) for word in words) else ()


def _calls_mpi(words: Sequence[str]) -> bool:
    return any(_MPI.search(word[:10_000]) for word in words)


def _command_at(job: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Of the text, the container or the first container with one of the pod template at this path."""
    *objects, last = path.split(".")
    value = part(job, *objects).get(last)
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError:
            return ()
    containers = [part(value), *parts(value, "spec", "containers")]
    return next(filter(None, map(_words, containers)), ())


def _command_of(pods: Sequence[Pods]) -> tuple[str, ...]:
    commands = [each.command for each in pods if each.command]
    return next((command for command in commands if _calls_mpi(command)), next(iter(commands), ()))


def _told_torchrun(kind: Kind, pods: Sequence[Pods], command: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the variables that its controller sets: torchrun takes its numbers from them."""
    nodes, gpus = sum(each.count for each in pods), next((each for each in pods if each.gpus), None)
    if not (kind.tells_torchrun and command and nodes and gpus):
        return command
    return ("env", f"PET_NNODES={nodes}", f"PET_NPROC_PER_NODE={gpus.processes or gpus.gpus}", *command)
