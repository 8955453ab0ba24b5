"""Reads the job to plan from a Kubernetes object's annotations.

A spec is text that refers to nothing: no file and no address is read because an annotation says so, only a ConfigMap
in the job's own namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.admission import specs
from planner.admission.client import UnreachableError
from planner.admission.kubernetes import BUNDLE, CONFIGMAP, GPU, ConfigMapKey, Pods, find_spec
from planner.admission.kubernetes_api import NOT_FOUND, ApiError, path_of
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.schema import Job

if TYPE_CHECKING:
    from planner.admission.kubernetes_api import Api


_MOST_PRODUCTS = 16
"""Of one job, of which something is said."""


def job_of(annotations: Mapping[str, Any], namespace: str, api: Callable[[], Api]) -> Job:
    """The job that annotations carry. Raises SpecError, and UnreachableError if its ConfigMap cannot be read now."""
    found = find_spec(annotations)
    if isinstance(found, ConfigMapKey):
        return read(_config_map_text(found, namespace, api), CONFIGMAP)
    if found is None:
        raise SpecError("the job carries no spec", allowed=f"the annotation {BUNDLE} or {CONFIGMAP}")
    return read(found, BUNDLE)


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


def _config_map_text(named: ConfigMapKey, namespace: str, api: Callable[[], Api]) -> str:
    try:
        found = api().get(path_of("", "v1", "configmaps", named.name, namespace=namespace))
    except ApiError as error:
        if error.status == NOT_FOUND:
            raise SpecError(f"there is no ConfigMap {named.name} in {namespace}", place=CONFIGMAP) from None
        raise UnreachableError(f"the ConfigMap {named.name} cannot be read: {error.problem}") from None
    data = found.get("data")
    text = data.get(named.key) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise SpecError(
            f"the ConfigMap {named.name} has no text under {named.key}",
            allowed=f"{named.name}/KEY names another key",
            place=CONFIGMAP,
        )
    return text


def differences(pods: Sequence[Pods], job: Job, *, products: Sequence[str] = ()) -> list[str]:
    """What the pods ask for and the plan is not of: one sentence each, that names both. Pods without GPUs say nothing.

    `products` are labels of the nodes that the pods will be on.
    """
    found = []
    asked, planned = sum(each.count * each.gpus for each in pods), job.cluster.nodes * job.cluster.gpus_per_node
    if asked and asked != planned:
        found.append(f"the pods ask for {asked} {GPU}, and the spec plans {planned} GPU{'s' if planned != 1 else ''}")
    gpu = job.cluster.gpu.name
    for product in products[:_MOST_PRODUCTS]:
        known = catalog.by_node_label(product)
        if known and gpu and known.name != gpu:
            found.append(f"the pods go to {product} ({known.name}), and the spec plans {gpu}")
    return found
