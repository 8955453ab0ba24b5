"""Reads what a submitted Kubernetes object asks for: its spec, its pods, how many GPUs and which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.admission import specs
from planner.admission.client import UnreachableError
from planner.admission.gpu_requests import combine, no_claim, plan_part
from planner.admission.kubernetes_api import NOT_FOUND, ApiError, part, path_of, text_of
from planner.admission.workload_kinds import JobPods, asks_for_gpus, is_part_of_job, read_job_pods
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
USUAL_KEY = "job.yaml"
_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as it was submitted; its annotations are as unread as they came."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, Any]
    asked: JobPods
    asks_for_gpus: bool = False
    """Of any kind, anywhere in it: also of a kind of job that is not known here."""
    is_part_of_job: bool = False
    """Made by the controller of a job that was asked about when it was submitted."""

    @property
    def carries_spec(self) -> bool:
        """Whether it says so; `job_of` finds out whether that can be used."""
        return carries_spec(self.annotations)

    @property
    def products(self) -> tuple[str, ...]:
        """The product labels that its GPUs have to have, each once."""
        requests = (request for pods in self.asked.pods for request in pods.requests)
        return tuple(dict.fromkeys(request.product for request in requests if request.product))

    @property
    def gpu(self) -> str:
        """The catalog's name of the GPU, or MIG slice, that its pods ask for, as far as they say which."""
        asked = combine(self.asked.requests)
        known = asked.gpu() if asked is not None else None
        return known.name if known is not None else ""

    @property
    def job_id(self) -> str:
        """Under which the service knows it: names are used again, a uid is not."""
        return self.uid or f"{self.namespace}.{self.name}"


def read_submission(job: Mapping[str, Any], namespace: str = "", api: Callable[[], Api] | None = None) -> Submission:
    """What the object asks for. What is not as the API has it asks for nothing; claims of devices are looked up in the
    `api`."""
    metadata = part(job, "metadata")
    of = namespace or text_of(metadata.get("namespace"))
    asked = read_job_pods(job, no_claim if api is None else partial(_find_claim, api, of))
    return Submission(
        kind=text_of(job.get("kind")),
        namespace=of,
        name=text_of(metadata.get("name")) or text_of(metadata.get("generateName")),
        uid=text_of(metadata.get("uid")),
        annotations=part(metadata, "annotations"),
        asked=asked,
        asks_for_gpus=any(pods.asks for pods in asked.pods) or asks_for_gpus(job.get("spec")),
        is_part_of_job=is_part_of_job(metadata),
    )


_CLAIMS = {"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates"}


def _find_claim(api: Callable[[], Api], namespace: str, kind: str, name: str) -> Mapping[str, Any]:
    """Its spec; empty where it cannot be read: then what it asks for is not known."""
    if not _DNS_NAME.fullmatch(name):
        return {}
    try:
        return part(api().get(path_of("resource.k8s.io", "v1", _CLAIMS[kind], name, namespace=namespace)), "spec")
    except ApiError:
        return {}


def carries_spec(annotations: Mapping[str, Any]) -> bool:
    """Whether annotations name a spec, usable or not."""
    return BUNDLE in annotations or CONFIGMAP in annotations


_MOST_PRODUCTS, _LONGEST = 16, 120
"""Of one job, of which something is said; characters of a name."""


def job_of(annotations: Mapping[str, Any], namespace: str, api: Callable[[], Api]) -> Job:
    """The job that annotations carry. Raises SpecError, and UnreachableError if its ConfigMap cannot be read now."""
    text, named = annotations.get(BUNDLE), annotations.get(CONFIGMAP)
    if text is not None and named is not None:
        raise SpecError("the job names its spec twice", allowed=f"{BUNDLE} or {CONFIGMAP}", place=CONFIGMAP)
    if named is not None:
        return read(_text_of_config_map(named, namespace, api), CONFIGMAP)
    if text is None:
        raise SpecError("the job carries no spec", allowed=f"the annotation {BUNDLE} or {CONFIGMAP}")
    if not isinstance(text, str):
        raise SpecError("it must be a string", allowed="a bundle, or a spec that refers to nothing", place=BUNDLE)
    return read(text, BUNDLE)


def _text_of_config_map(named: Any, namespace: str, api: Callable[[], Api]) -> str:
    name, _, key = named.partition("/") if isinstance(named, str) else ("", "", "")
    key = key or USUAL_KEY
    # They become parts of an address in the API: whatever else than a name arrives here must not.
    if not _DNS_NAME.fullmatch(name) or not _KEY.fullmatch(key) or key in (".", ".."):
        raise SpecError(
            f"{str(named)[:80]!a} is not a ConfigMap",
            allowed=f"NAME or NAME/KEY of a ConfigMap in the job's own namespace; KEY is {USUAL_KEY} if left out",
            place=CONFIGMAP,
        )
    try:
        config_map = api().get(path_of("", "v1", "configmaps", name, namespace=namespace))
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise SpecError(f"there is not a ConfigMap {name} in {namespace}", place=CONFIGMAP) from None
        raise UnreachableError(f"the ConfigMap {name} cannot be read: {error.problem}") from None
    text = part(config_map, "data").get(key)
    if not isinstance(text, str):
        raise SpecError(
            f"the ConfigMap {name} has no text under {key}", allowed=f"{name}/KEY names another key", place=CONFIGMAP
        )
    return text


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


def bundle_of(
    annotations: Mapping[str, Any],
    namespace: str,
    api: Callable[[], Api],
    asked: JobPods,
    *,
    gpu: str = "",
    products: Sequence[str] = (),
) -> tuple[Mapping[str, Any], list[str]]:
    """The bundle of the job that annotations carry, on this GPU or on the part of one that its pods ask for, and what
    its owner should know about that. Raises SpecError and UnreachableError as :func:`job_of`."""
    from planner.job.loading import bundle, job_on_gpu

    job = job_of(annotations, namespace, api)
    job, notes = plan_part(job_on_gpu(job, gpu) if gpu else job, asked.requests)
    return bundle(job), [*differences(asked, job, products=products), *notes]


def differences(asked: JobPods, job: Job, *, products: Sequence[str] = ()) -> list[str]:
    """What the pods ask for and the plan is not of: one sentence each, that names both. Pods without GPUs say nothing.

    `products` are labels of the nodes that the pods will be on.
    """
    sentences = []
    planned = job.cluster.nodes * job.cluster.gpus_per_node
    count = f"the spec plans {planned} GPU{'s' if planned != 1 else ''}"
    if asked.gpus and asked.gpus != planned:
        sentences.append(f"the pods ask for {asked.gpus} {' and '.join(asked.resources)}, and {count}")
    elif asked.gpus and asked.ranks != planned:
        sentences.append(f"the job starts {asked.ranks} rank{'s' if asked.ranks != 1 else ''}, and {count}")
    gpu = job.cluster.gpu.name
    for product in products[:_MOST_PRODUCTS]:
        known = catalog.by_node_label(product)
        if known and gpu and known.name != gpu:
            sentences.append(f"the pods go to {product} ({known.name}), and the spec plans {gpu}")
    if asked.unsaid:
        sentences.append(f"{asked.runtime[:_LONGEST]} alone says the job's {', '.join(asked.unsaid)}: not compared")
    return sentences
