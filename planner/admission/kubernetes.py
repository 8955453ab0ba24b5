"""Reads what a submitted Kubernetes object asks for: its spec, its pods, how many GPUs and which."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from planner.admission import specs
from planner.admission.client import UnreachableError
from planner.admission.kubernetes_api import NOT_FOUND, ApiError, path_of
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.schema import Job

if TYPE_CHECKING:
    from planner.admission.kubernetes_api import Api


SYSTEM = "kubernetes"
BUNDLE, CONFIGMAP, PLAN, JOB, RUN = (
    "planner.dev/bundle",
    "planner.dev/spec-configmap",
    "planner.dev/plan-id",
    "planner.dev/job-id",
    "planner.dev/run",
)
"""Annotations: the bundle or a self-contained spec as text, or where it stands; what a hook leaves on pods; and the
folder, shared with the service, in which the job's own command is run on paper."""
GPU = "nvidia.com/gpu"
_ANY_GPU = re.compile(r"[^/]+/(.*[-.])?(gpu.*|mig-.*|i915.*|xe)")
"""Resources that are GPUs or parts of them: `amd.com/gpu`, `nvidia.com/mig-1g.10gb`, `nvidia.com/gpu.shared`."""
_ASKING = ("limits", "requests")
_MOST_PARTS = 100_000
_ASKED_BEFORE = frozenset(("Job", "JobSet", "MPIJob", "PyTorchJob", "RayCluster", "RayJob", "TrainJob"))
"""What controllers of these make was asked about with them, or with what made them. Not so a Deployment's pods."""
USUAL_KEY = "job.yaml"
_MOST_GPUS = 2**24
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigMapKey:
    """A text in a ConfigMap of the job's own namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """So many equal pods; `gpus` of each, on nodes with this `product` label (empty: any)."""

    count: int
    gpus: int
    product: str
    command: tuple[str, ...] = ()
    """Of the container that asks for GPUs, as far as it says one."""
    asks: bool = field(default=False, compare=False)
    """For a GPU of any kind, also one that is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as it was submitted; its annotations are as unread as they came."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, Any]
    pods: tuple[Pods, ...]
    asks_for_gpus: bool = False
    """Of any kind, anywhere in it: also of a kind of job that is not known here."""

    @property
    def carries_spec(self) -> bool:
        """Whether it says so; `find_spec` finds out whether that can be used."""
        return carries_spec(self.annotations)

    @property
    def command(self) -> tuple[str, ...]:
        """Of the first container that asks for GPUs."""
        return next((pods.command for pods in self.pods if pods.gpus), ())

    @property
    def gpus(self) -> int:
        """Of all pods together."""
        return sum(pods.count * pods.gpus for pods in self.pods)

    @property
    def products(self) -> tuple[str, ...]:
        """The product labels that its GPUs have to have, each once."""
        return tuple(dict.fromkeys(pods.product for pods in self.pods if pods.gpus and pods.product))

    @property
    def job_id(self) -> str:
        """Under which the service knows it: names come again, a uid does not."""
        return self.uid or f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of job: where the API has it, and the pods that it will make."""

    group: str
    version: str
    plural: str
    pods: Callable[[Mapping[str, Any]], Iterator[Pods]]


def read_submission(job: Mapping[str, Any], namespace: str = "") -> Submission:
    """What the object asks for. What is not as the API has it asks for nothing."""
    metadata, kind = part(job, "metadata"), _text(job.get("kind"))
    known = KINDS.get(kind)
    is_part_of_job = any(
        owner.get("controller") is True and _text(owner.get("kind")) in _ASKED_BEFORE
        for owner in parts(metadata, "ownerReferences")
    )
    return Submission(
        kind=kind,
        namespace=namespace or _text(metadata.get("namespace")),
        name=_text(metadata.get("name")) or _text(metadata.get("generateName")),
        uid=_text(metadata.get("uid")),
        annotations=part(metadata, "annotations"),
        pods=tuple(known.pods(part(job, "spec"))) if known else (),
        asks_for_gpus=not is_part_of_job and asks_for_gpus(job.get("spec")),
    )


def asks_for_gpus(document: Any) -> bool:
    """Whether anything in it limits or requests a GPU, or a part of one. What is too large to be looked at does."""
    waiting, looked = [document], 0
    while waiting:
        value = waiting.pop()
        looked += 1
        if looked > _MOST_PARTS:
            return True
        if isinstance(value, dict):
            for name, count in (item for asking in _ASKING for item in part(value, asking).items()):
                if _ANY_GPU.fullmatch(str(name)[:200]) and str(count) != "0":
                    return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def carries_spec(annotations: Mapping[str, Any]) -> bool:
    """Whether annotations name a spec, usable or not."""
    return BUNDLE in annotations or CONFIGMAP in annotations


def find_spec(annotations: Mapping[str, Any]) -> str | ConfigMapKey | None:
    """The spec that annotations carry, or where it stands; None without one. Raises SpecError."""
    text, named = annotations.get(BUNDLE), annotations.get(CONFIGMAP)
    if text is not None and named is not None:
        raise SpecError("the job names its spec twice", allowed=f"{BUNDLE} or {CONFIGMAP}", place=CONFIGMAP)
    if text is not None:
        if not isinstance(text, str):
            raise SpecError("it is no text", allowed="a bundle, or a spec that refers to nothing", place=BUNDLE)
        return text
    if named is None:
        return None
    name, _, key = named.partition("/") if isinstance(named, str) else ("", "", "")
    key = key or USUAL_KEY
    # They become parts of an address in the API: whatever else than a name arrives here must not.
    if not _DNS_NAME.fullmatch(name) or not _KEY.fullmatch(key) or key in (".", ".."):
        raise SpecError(
            f"{str(named)[:80]!a} is no ConfigMap",
            allowed=f"NAME or NAME/KEY of a ConfigMap in the job's own namespace; KEY is {USUAL_KEY} if left out",
            place=CONFIGMAP,
        )
    return ConfigMapKey(name=name, key=key)


def pods_of(template: Mapping[str, Any], count: int) -> Pods:
    """So many pods of a template."""
    spec = part(template, "spec")
    gpus = [(_gpus(container), container) for container in parts(spec, "containers")]
    asking = next((container for count, container in gpus if count), {})
    words = [*_list(asking.get("command")), *_list(asking.get("args"))]
    return Pods(
        count=count,
        gpus=min(sum(count for count, _ in gpus), _MOST_GPUS),
        product=_text(part(spec, "nodeSelector").get(catalog.PRODUCT_LABEL)),
        command=tuple(words) if all(isinstance(word, str) for word in words) else (),
        asks=asks_for_gpus(spec),
    )


def _gpus(container: Mapping[str, Any]) -> int:
    """The limit: of what cannot be shared, requests are equal to it."""
    limits, requests = (part(container, "resources", name) for name in ("limits", "requests"))
    return number(requests.get(GPU) if limits.get(GPU) is None else limits[GPU], 0)


def _job_pods(spec: Mapping[str, Any]) -> Iterator[Pods]:
    parallelism = number(spec.get("parallelism"), 1)
    completions = number(spec.get("completions"), parallelism)
    yield pods_of(part(spec, "template"), min(parallelism, completions))


def _jobset_pods(spec: Mapping[str, Any]) -> Iterator[Pods]:
    for replicated in parts(spec, "replicatedJobs"):
        jobs = number(replicated.get("replicas"), 1)
        for pods in _job_pods(part(replicated, "template", "spec")):
            yield replace(pods, count=pods.count * jobs)


def _pytorch_pods(spec: Mapping[str, Any]) -> Iterator[Pods]:
    for replicas in map(part, part(spec, "pytorchReplicaSpecs").values()):
        yield pods_of(part(replicas, "template"), number(replicas.get("replicas"), 1))


def _ray_pods(spec: Mapping[str, Any]) -> Iterator[Pods]:
    """Workers as Kueue counts them (v0.19.2, jobs/raycluster/common.go): replicas times hosts, one if unsaid."""
    cluster = part(spec, "rayClusterSpec")
    if "headGroupSpec" in cluster:
        yield pods_of(part(cluster, "headGroupSpec", "template"), 1)
    for group in parts(cluster, "workerGroupSpecs"):
        count = number(group.get("replicas"), 1) * max(number(group.get("numOfHosts"), 1), 1)
        yield pods_of(part(group, "template"), count)


KINDS = {
    "Job": Kind(group="batch", version="v1", plural="jobs", pods=_job_pods),
    "JobSet": Kind(group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets", pods=_jobset_pods),
    "PyTorchJob": Kind(group="kubeflow.org", version="v1", plural="pytorchjobs", pods=_pytorch_pods),
    "RayJob": Kind(group="ray.io", version="v1", plural="rayjobs", pods=_ray_pods),
}


def part(document: Any, *path: str) -> Mapping[str, Any]:
    """The object at this path of an object; empty where the API would have one and there is none."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def parts(document: Any, *path: str) -> list[Mapping[str, Any]]:
    """The objects of the list at this path."""
    *parents, name = path
    return [part(item) for item in _list(part(document, *parents).get(name))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def number(value: Any, otherwise: int) -> int:
    """A count, as the API writes it: `8`, or the quantity `"8"`."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,8}", value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return min(value, _MOST_GPUS)
    return otherwise


_MOST_PRODUCTS = 16
"""Of one job, of which something is said."""


def job_of(annotations: Mapping[str, Any], namespace: str, api: Callable[[], Api]) -> Job:
    """The job that annotations carry. Raises SpecError, and UnreachableError if its ConfigMap cannot be read now."""
    spec = find_spec(annotations)
    if spec is None:
        raise SpecError("the job carries no spec", allowed=f"the annotation {BUNDLE} or {CONFIGMAP}")
    if isinstance(spec, str):
        return read(spec, BUNDLE)
    try:
        config_map = api().get(path_of("", "v1", "configmaps", spec.name, namespace=namespace))
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise SpecError(f"there is no ConfigMap {spec.name} in {namespace}", place=CONFIGMAP) from None
        raise UnreachableError(f"the ConfigMap {spec.name} cannot be read: {error.problem}") from None
    text = part(config_map, "data").get(spec.key)
    if not isinstance(text, str):
        raise SpecError(
            f"the ConfigMap {spec.name} has no text under {spec.key}",
            allowed=f"{spec.name}/KEY names another key",
            place=CONFIGMAP,
        )
    return read(text, CONFIGMAP)


def read(text: str, source: str) -> Job:
    """A bundle in JSON, or a spec in YAML that refers to nothing outside. Raises SpecError."""
    from planner.job.json_text import read_json
    from planner.job.loading import load_bundle, load_yaml

    if len(text) > specs.MOST_BYTES:
        raise SpecError("the spec is larger than 8 MiB", place=source)
    if text.lstrip().startswith("{"):
        try:
            data = read_json(text, source)
        except SpecError:
            data = None  # a YAML mapping in braces, or broken: the YAML reader says where
        if isinstance(data, dict) and "schema" in data:
            return load_bundle(data, source)
    return load_yaml(text, source)


def differences(pods: Sequence[Pods], job: Job, *, products: Sequence[str] = ()) -> list[str]:
    """What the pods ask for and the plan is not of: one sentence each, that names both. Pods without GPUs say nothing.

    `products` are labels of the nodes that the pods will be on.
    """
    sentences = []
    asked, planned = sum(group.count * group.gpus for group in pods), job.cluster.nodes * job.cluster.gpus_per_node
    if asked and asked != planned:
        count = f"{planned} GPU{'s' if planned != 1 else ''}"
        sentences.append(f"the pods ask for {asked} {GPU}, and the spec plans {count}")
    gpu = job.cluster.gpu.name
    for product in products[:_MOST_PRODUCTS]:
        known = catalog.by_node_label(product)
        if known and gpu and known.name != gpu:
            sentences.append(f"the pods go to {product} ({known.name}), and the spec plans {gpu}")
    return sentences
