"""The values: what is misspelt, of another type or does not go together is refused before anything is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import helm_python
import pytest
import rendered_chart
import yaml
from rendered_chart import CHART, REPOSITORY

from planner.admission import policy
from planner.settings import Settings

SQLITE = {"database": {"type": "sqlite"}}
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"webhok": {}}, "additional properties 'webhok' not allowed"),
    ({"ray": {"worker": {}}}, "at '/ray': additional properties 'worker' not allowed"),
    ({"ray": {"workers": {"min": "2"}}}, "at '/ray/workers/min': got string, want integer"),
    ({"ray": {"workers": {"max": 0}}}, "at '/ray/workers/max': minimum: got 0, want 1"),
    ({"ray": {"env": [{"value": "1"}]}}, "at '/ray/env/0': missing property 'name'"),
    ({"ray": {"version": "2.60"}}, "at '/ray/version': '2.60' does not match pattern"),
    ({"ray": {"upgradeStrategy": None}}, "at '/ray': missing property 'upgradeStrategy'"),
    ({"ray": {"validators": [{"name": "a"}]}}, "at '/ray/validators/0': missing property 'acceleratorType'"),
    ({"ray": {"validators": [{"name": "a", "acceleratorType": "A100", "min": 0}]}}, "minimum: got 0, want 1"),
    ({"settings": {"trace_worker": 8}}, "at '/settings': additional properties 'trace_worker' not allowed"),
    ({"settings": {"database": "postgresql://a:b@c/d"}}, "additional properties 'database' not allowed"),
    ({"settings": {"token_sha256": "0" * 64}}, "additional properties 'token_sha256' not allowed"),
    ({"settings": {"trace_memory_bytes": "8Gi"}}, "at '/settings/trace_memory_bytes': '8Gi' does not match pattern"),
    ({"settings": {"log_level": "verbose"}}, "value must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
    ({"database": {"type": "mysql"}}, "value must be one of 'embedded', 'external', 'sqlite'"),
    ({"database": {"embedded": {"storage": {"size": "20 GB"}}}}, "'20 GB' does not match pattern"),
    ({"image": {"digest": "0123"}}, "at '/image/digest': '0123' does not match pattern"),
    ({"image": {"pullPolicy": "always"}}, "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ({"token": {"existingSecret": "Planner_Token"}}, "'Planner_Token' does not match pattern"),
    ({"token": {"value": "secret"}}, "at '/token': additional properties 'value' not allowed"),
    ({"webhook": {"timeoutSeconds": 60}}, "at '/webhook/timeoutSeconds': maximum: got 60, want 30"),
    ({"webhook": {"failurePolicy": "Warn"}}, "value must be one of 'Ignore', 'Fail'"),
    ({"webhook": {"policy": {"exceed": "warn"}}}, "at '/webhook/policy': additional properties 'exceed' not allowed"),
    ({"webhook": {"policy": {"exceeds": "hold"}}}, "value must be one of 'warn', 'refuse'"),
    ({"kueue": {"policy": {"token": "secret"}}}, "at '/kueue/policy': additional properties 'token' not allowed"),
    ({"networkPolicy": {"clients": [{}]}}, "at '/networkPolicy/clients/0': minProperties: got 0, want 1"),
    ({"monitoring": {"serviceMonitor": {"interval": "fast"}}}, "'fast' does not match pattern"),
    ({"userId": 0}, "at '/userId': minimum: got 0, want 1"),
    ({"database": {"type": "external"}}, "database.external.existingSecret: name the Secret"),
    (SQLITE, "database.type sqlite is a file on the head: set ray.workers.enabled to false"),
    ({**SQLITE, "ray": {"workers": {"enabled": False}}}, "database.type sqlite: set ray.upgradeStrategy to None"),
    ({"ray": {"workers": {"enabled": False}}}, "nobody has CPUs for the planner"),
    ({"ray": {"workers": {"min": 5, "max": 2}}}, "ray: min 5 of workers is above max 2"),
    ({"ray": {"validators": [{"name": "a", "acceleratorType": "A100", "min": 2}]}}, "min 2 of a is above max"),
    ({"replicas": {"min": 9}}, "replicas: min is above max"),
    ({"ray": {"faultTolerance": {"type": "external"}}}, "ray.faultTolerance.external.address: name your Redis"),
    ({"fullnameOverride": "a" * 41}, "fullnameOverride: at most 40 characters"),
    ({"fullnameOverride": "7b"}, "does not begin with a letter"),
    (
        {"webhook": {"enabled": True, "policy": {"wait_seconds": 8}}},
        "webhook.timeoutSeconds: 10 is not above wait_seconds and timeout_seconds of its policy, 10 together",
    ),
    (
        {"webhook": {"enabled": True, "policy": {"unplanned": "refuse"}}},
        "webhook.policy.unplanned refuse: set webhook.onlyAnnotated to false",
    ),
    (
        {"webhook": {"enabled": True, "certificate": {"source": "given"}}},
        "webhook.certificate.source given: set existingSecret and caBundle",
    ),
    ({"webhook": {"enabled": True}}, "webhook.clientCertificate.caConfigMap: name the ConfigMap with the CA"),
    ({"webhook": {"enabled": True}}, "or set webhook.clientCertificate.required: false where the API server cannot"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_values_that_cannot_be_are_refused_with_their_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError) as refusal:
        rendered_chart.objects(values)

    assert message in str(refusal.value)


def objects_of(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of an object, with its place."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and "properties" in schema:
            yield place, schema
        for key, each in schema.items():
            yield from objects_of(each, f"{place}/{key}")


def test_nothing_but_globals_takes_keys_that_nobody_reads() -> None:
    lenient = [place for place, schema in objects_of(SCHEMA) if schema.get("additionalProperties") is not False]

    assert lenient == ["/properties/global"]


def test_the_schema_knows_the_settings_of_the_service_but_for_secrets() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}

    assert SCHEMA["properties"]["settings"]["properties"].keys() == fields - {"database", "token_sha256"}


def test_the_schema_knows_the_policy_of_a_door_as_the_door_does() -> None:
    known = SCHEMA["definitions"]["policy"]["properties"]
    fields = {field.name for field in dataclasses.fields(policy.Policy)}
    choices = {name: [str(each) for each in allowed] for name, allowed in policy._ALLOWED.items()}

    assert known.keys() == fields - {"server", "token"}
    assert {name: each["enum"] for name, each in known.items() if "enum" in each} == choices


def test_the_settings_that_the_schema_admits_are_those_that_the_service_reads() -> None:
    """One value of each type, as text and as itself."""
    given = {"trace_memory_bytes": "1.5GiB", "body_bytes": 1048576, "trace_seconds": 1.5, "factories": "ourmodels.*"}

    (application,) = yaml.safe_load(
        rendered_chart.only(rendered_chart.objects({"settings": given}), "RayService")["spec"]["serveConfigV2"]
    )["applications"]

    read = Settings.read(application["args"])
    assert (read.trace_memory_bytes, read.body_bytes, read.trace_seconds, read.factories) == (
        3 * 2**29,
        2**20,
        1.5,
        "ourmodels.*",
    )


@pytest.fixture(scope="module")
def values_table() -> ModuleType:
    path = REPOSITORY / "helm" / "values_table.py"
    spec = importlib.util.spec_from_file_location("values_table", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def leaves(values: Any, schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every value that the schema names one by one."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
    if "properties" in schema and path not in WHOLE:
        for key in values:
            yield from leaves(values[key], schema["properties"][key], (*path, key))
    else:
        yield path


WHOLE = {("webhook", "policy"), ("kueue", "policy"), ("settings",), ("webhook", "certificate", "issuerRef")}
"""Values that are said in one sentence."""


def test_every_value_says_what_it_is(values_table: ModuleType) -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    said = {each.path for each in values_table.documented(text)}

    undocumented = {
        path
        for path in leaves(yaml.safe_load(text), SCHEMA)
        if path not in said and path[-1] not in ("requests", "limits") and path[:-1] not in said
    }

    assert undocumented == set()


def test_the_readme_has_the_table_of_the_values_as_they_are(values_table: ModuleType) -> None:
    readme = (CHART / "README.md").read_text(encoding="utf-8")
    values = (CHART / "values.yaml").read_text(encoding="utf-8")

    assert readme == values_table.page(readme, values), "python helm/values_table.py makes it"
    assert "| `ray.workers.max` | `4` |" in readme


def test_notes_tell_what_to_do_next() -> None:
    notes = rendered_chart.notes(rendered_chart.values_of("kueue"))

    assert "planner answers at http://jobs-planner.mlops.svc:8642" in notes
    assert "wait --for=condition=Ready --timeout=10m rayservice/jobs-planner" in notes
    assert "get secret jobs-planner-token" in notes
    assert "{admissionChecks: [{name: planner-fits}]}" in notes
