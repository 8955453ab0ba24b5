"""Reads what a submitted Kubernetes object asks for: its spec, its pods, how many GPUs and which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from planner.admission import specs
from planner.admission.client import UnreachableError
from planner.admission.gpu_requests import (
    MOST_CLAIMS,
    FindClaim,
    combine,
    count_gpus,
    no_claim,
    other_gpus,
    plan_part,
    refuse_more,
)
from planner.admission.kubernetes_api import NOT_FOUND, ApiError, part, path_of, text_of
from planner.admission.workload_kinds import JobPods, asks_for_gpus, is_part_of_job, read_job_pods
from planner.errors import SpecError
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


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job as it was submitted. Its pods are read when something about them is asked; then SpecError is raised for
    more of them than any training has."""

    document: Mapping[str, Any]
    namespace: str
    find_claim: FindClaim = no_claim

    @cached_property
    def asked(self) -> JobPods:
        return read_job_pods(self.document, self.find_claim)

    @property
    def asks_for_gpus(self) -> bool:
        """Of any kind, anywhere in it: also of a kind of job that is not known here."""
        return any(pods.asks for pods in self.asked.pods) or asks_for_gpus(self.document.get("spec"))

    @property
    def is_part_of_job(self) -> bool:
        """Made by the controller of a job that was asked about when it was submitted."""
        return is_part_of_job(self._metadata)

    @property
    def kind(self) -> str:
        return text_of(self.document.get("kind"))

    @property
    def name(self) -> str:
        return text_of(self._metadata.get("name")) or text_of(self._metadata.get("generateName"))

    @property
    def uid(self) -> str:
        return text_of(self._metadata.get("uid"))

    @property
    def annotations(self) -> Mapping[str, Any]:
        """As unread as they came."""
        return part(self._metadata, "annotations")

    @property
    def _metadata(self) -> Mapping[str, Any]:
        return part(self.document, "metadata")

    @property
    def carries_spec(self) -> bool:
        """Whether it says so; `job_of` finds out whether that can be used."""
        return carries_spec(self.annotations)

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
    of = namespace or text_of(part(job, "metadata").get("namespace"))
    return Submission(document=job, namespace=of, find_claim=no_claim if api is None else _claims_in(api, of))


_CLAIMS = {"ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates"}


def _claims_in(api: Callable[[], Api], namespace: str) -> FindClaim:
    """Finds claims of one job: each is asked for once, and none more when the API does not answer."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    is_away = False

    def find(kind: str, name: str) -> Mapping[str, Any]:
        """Its spec; empty where it cannot be read: then what it asks for is not known."""
        nonlocal is_away
        if is_away or not _DNS_NAME.fullmatch(name):
            return {}
        if (kind, name) not in known:
            refuse_more("claims of devices", len(known) + 1, MOST_CLAIMS)
            path = path_of("resource.k8s.io", "v1", _CLAIMS[kind], name, namespace=namespace)
            try:
                known[kind, name] = part(api().get(path), "spec")
            except ApiError as error:
                known[kind, name], is_away = {}, not error.status
        return known[kind, name]

    return find


def carries_spec(annotations: Mapping[str, Any]) -> bool:
    """Whether annotations name a spec, usable or not."""
    return BUNDLE in annotations or CONFIGMAP in annotations


_MOST_RESOURCES, _LONGEST = 4, 120
"""Of one job, that are named; characters of a name."""


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
    read_pods: Callable[[], JobPods],
    *,
    gpu: str = "",
) -> tuple[Mapping[str, Any], list[str]]:
    """The bundle of the job that annotations carry, on this GPU or on the part of one that its pods ask for, and what
    its owner should know about that. Raises SpecError and UnreachableError as :func:`job_of`."""
    from planner.job.loading import bundle, job_on_gpu

    job = job_of(annotations, namespace, api)
    job = job_on_gpu(job, gpu) if gpu else job
    try:
        asked = read_pods()
    except SpecError as error:  # more of them must not be a way around the plan
        return bundle(job), [f"{error.problem}, more than are read: planned as the spec says"]
    job, notes = plan_part(job, asked.requests)
    return bundle(job), [*differences(asked, job), *notes]


def differences(asked: JobPods, job: Job) -> list[str]:
    """What the pods ask for and the plan is not of: one sentence each, that names both. Pods without GPUs say
    nothing."""
    sentences = []
    planned = job.cluster.ranks
    count = f"the spec plans {count_gpus(planned)}"
    if asked.gpus and asked.gpus != planned:
        named = " and ".join(asked.resources[:_MOST_RESOURCES])
        sentences.append(f"the pods ask for {asked.gpus} {named}, and {count}")
    elif asked.gpus and asked.ranks != planned:
        sentences.append(f"the job starts {asked.ranks} rank{'s' if asked.ranks != 1 else ''}, and {count}")
    sentences += other_gpus(asked.products, job, "the pods go to")
    sentences += [
        f"planner does not know {name[:_LONGEST]}: its GPUs are not counted" for name in asked.unread[:_MOST_RESOURCES]
    ]
    if asked.unsaid:
        sentences.append(f"{asked.runtime[:_LONGEST]} alone says the job's {', '.join(asked.unsaid)}: not compared")
    return sentences
