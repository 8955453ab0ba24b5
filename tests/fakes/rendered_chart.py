"""The chart as Helm renders it, for every set of values that lies in its folder `ci`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "planner"
RELEASE = "jobs"
NAMESPACE = "mlops"
VALUE_SETS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
WITH_PODS = ("Deployment", "StatefulSet")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that is to be: the template, and what makes pods of it."""

    owner: str
    labels: Mapping[str, str]
    spec: Document

    @property
    def containers(self) -> list[Document]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def values_of(name: str) -> dict[str, Any]:
    """One of the chart's sets of values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8"))
    return found


@functools.cache
def rendered(name: str) -> tuple[Document, ...]:
    """The objects of a set of values; the same ones for all who ask, since secrets are drawn by chance."""
    return objects(values_of(name))


def objects(values: Mapping[str, Any], chart: Path = CHART) -> tuple[Document, ...]:
    """The objects that Helm makes of these values. Raises helm_python.HelmError as Helm would refuse them."""
    return tuple(each for text in manifests(values, chart).values() for each in yaml.safe_load_all(text) if each)


def notes(values: Mapping[str, Any]) -> str:
    """What Helm says to who installed it."""
    with helm_python.Chart.load(CHART) as chart:
        return chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)["planner/templates/NOTES.txt"]


def manifests(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, str]:
    """The rendered text of every template but the notes."""
    with helm_python.Chart.load(chart) as loaded:
        found = loaded.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    return {path: text for path, text in found.items() if not path.endswith("NOTES.txt")}


def of_kind(found: tuple[Document, ...], kind: str) -> list[Document]:
    return [each for each in found if each["kind"] == kind]


def only(found: tuple[Document, ...], kind: str) -> Document:
    (one,) = of_kind(found, kind)
    return one


def pods(found: tuple[Document, ...]) -> list[Pod]:
    """Every pod that comes of the objects, Ray's included: with the labels that KubeRay adds (v1.7, pod.go)."""
    return [*_pods_of_controllers(found), *_pods_of_ray(found)]


def _pods_of_controllers(found: tuple[Document, ...]) -> Iterator[Pod]:
    for each in found:
        if each["kind"] in WITH_PODS:
            template = each["spec"]["template"]
            yield Pod(f"{each['kind']} {each['metadata']['name']}", template["metadata"]["labels"], template["spec"])


def _pods_of_ray(found: tuple[Document, ...]) -> Iterator[Pod]:
    for service in of_kind(found, "RayService"):
        cluster = service["spec"]["rayClusterConfig"]
        head = cluster["headGroupSpec"]
        groups = [("head", "headgroup", head)]
        groups += [("worker", group["groupName"], group) for group in cluster.get("workerGroupSpecs", [])]
        for node_type, name, group in groups:
            template = group["template"]
            labels = {
                **template["metadata"]["labels"],
                **group.get("labels", {}),
                "ray.io/node-type": node_type,
                "ray.io/group": name,
            }
            yield Pod(f"RayService {name}", labels, template["spec"])
