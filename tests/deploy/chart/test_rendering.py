"""What Helm makes of every set of values: it lints, every object is one that Kubernetes or its operator takes."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import rendered_chart
import yaml
from rendered_chart import CHART, REPOSITORY, VALUE_SETS, Document, only, rendered

SCHEMAS = Path(__file__).parent / "schemas"
DEPLOY = REPOSITORY / "deploy"
OLDEST, NEWEST = "1.28", "1.37"
"""What Chart.yaml admits, and the newest that kubernetes-validate 1.37 knows."""


def manifest_pods(found: tuple[Document, ...]) -> list[tuple[str, Document]]:
    """Ray's pods and its Service as objects of their own: Kubernetes never sees them inside of a RayService."""
    service = only(found, "RayService")
    cluster = service["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    made = [("Pod", group["template"]) for group in groups]
    return [*made, ("Service", service["spec"]["serveService"])]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_helm_lints_without_a_warning(name: str) -> None:
    report = helm_python.lint(CHART, rendered_chart.values_of(name), strict=True, namespace="mlops")

    assert [each["error"] for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_object_is_one_that_kubernetes_takes(name: str, version: str) -> None:
    known = [each for each in rendered(name) if not own_schema(each).exists()]

    for each in known:
        kubernetes_validate.validate(each, version, strict=True)
    for kind, each in manifest_pods(rendered(name)):
        kubernetes_validate.validate({"apiVersion": "v1", "kind": kind, **each}, version, strict=True)


def own_schema(each: Document) -> Path:
    return SCHEMAS / f"{each['kind'].lower()}.json"


@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_custom_resource_has_only_fields_that_its_operator_knows(name: str) -> None:
    custom = [each for each in rendered(name) if own_schema(each).exists()]

    assert custom
    for each in custom:
        jsonschema.validate(each, json.loads(own_schema(each).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", VALUE_SETS)
def test_no_two_objects_are_the_same(name: str) -> None:
    named = Counter(
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in rendered(name)
    )

    assert [each for each, count in named.items() if count > 1] == []


def test_the_labels_of_ray_pods_do_not_change_with_the_version() -> None:
    """Another label would be another cluster, and every plan in progress would be lost for a patch release."""
    for pod in rendered_chart.pods(rendered("gpu-validators")):
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod.labels.keys()


def serve_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(only(rendered(name), "RayService")["spec"]["serveConfigV2"])
    return config


def test_the_service_runs_with_the_serve_configuration_that_is_deployed_without_kubernetes() -> None:
    assert serve_config("embedded") == yaml.safe_load((DEPLOY / "serve.yaml").read_text(encoding="utf-8"))


def test_values_change_the_serve_configuration_where_they_say_so() -> None:
    plain = yaml.safe_load((DEPLOY / "serve.yaml").read_text(encoding="utf-8"))
    (application,) = plain["applications"]
    application["args"] |= {"trace_workers": 16, "retention_days": 30, "log_level": "WARNING"}
    replicas = next(each for each in application["deployments"] if each["name"] == "Planner")
    replicas["autoscaling_config"] |= {"min_replicas": 2, "max_replicas": 16}

    assert serve_config("external") == plain


@pytest.mark.parametrize("name", VALUE_SETS)
def test_ray_takes_the_serve_configuration(name: str) -> None:
    from ray.serve.schema import ServeDeploySchema

    from planner.settings import Settings

    config = ServeDeploySchema.model_validate(serve_config(name))

    (application,) = config.applications
    assert application.import_path == "planner.service.app:build"
    Settings.read(application.args)


def test_the_rules_are_those_that_are_deployed_without_kubernetes() -> None:
    files = ["recording.rules.yml", "alerts.rules.yml"]
    deployed = [yaml.safe_load((DEPLOY / "prometheus" / name).read_text(encoding="utf-8"))["groups"] for name in files]

    assert only(rendered("monitoring"), "PrometheusRule")["spec"]["groups"] == [*deployed[0], *deployed[1]]


def test_the_dashboards_are_those_that_are_deployed_without_kubernetes() -> None:
    maps = rendered_chart.of_kind(rendered("monitoring"), "ConfigMap")
    folder = DEPLOY / "grafana" / "dashboards"

    found = {file: json.loads(text) for each in maps for file, text in each["data"].items()}

    assert found == {f"planner-{path.name}": json.loads(path.read_bytes()) for path in folder.glob("*.json")}
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in maps} == {"1"}


def test_a_packaged_chart_renders_as_its_folder_does(tmp_path: Path) -> None:
    """Its files are links to what is deployed: an archive has to hold what they point to."""
    archive = Path(helm_python.package(CHART, destination=tmp_path))
    shutil.copy(archive, tmp_path / "elsewhere.tgz")
    values = {**rendered_chart.values_of("monitoring"), "token": {"enabled": False}}
    stores: dict[str, Any] = {"database": {"embedded": {"existingSecret": "a"}}}
    values["ray"] = {"faultTolerance": {"embedded": {"existingSecret": "b"}}}

    packaged = rendered_chart.objects({**values, **stores}, tmp_path / "elsewhere.tgz")

    assert packaged == rendered_chart.objects({**values, **stores})


def test_an_archive_holds_what_helm_needs_and_nothing_else(tmp_path: Path) -> None:
    with helm_python.Chart.load(helm_python.package(CHART, destination=tmp_path)) as chart:
        names = {each["name"] for each in chart.files}

    assert names == {
        "README.md", ".helmignore", "files/serve.yaml", "files/recording.rules.yml", "files/alerts.rules.yml",
        "files/dashboards/cluster.json", "files/dashboards/job.json", "files/dashboards/planner.json",
    }  # fmt: skip


def test_the_chart_has_the_version_of_the_last_release() -> None:
    (without_a_tag,) = re.findall(
        r'WITHOUT_A_TAG = "(.+)"', (REPOSITORY / "build_version.py").read_text(encoding="utf-8")
    )
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["appVersion"] == without_a_tag


def test_ray_has_the_version_that_is_tested() -> None:
    pinned = dict(
        line.split("==")
        for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split()
        if "==" in line
    )

    assert yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["ray"]["version"] == pinned["ray"]
