"""The manifests that a site without Helm applies: valid, safe, and of the programs that there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from planner.admission import kueue, webhook
from planner.admission.kubernetes import BUNDLE, CONFIGMAP
from planner.admission.kueue_workloads import CONTROLLER
from planner.admission.policy import Action, Policy
from planner.admission.workload_kinds import KINDS
from planner.cli import shell

REPOSITORY = Path(__file__).parents[3]
FOLDER = REPOSITORY / "deploy/kubernetes"
VERSION = "1.37"
OF_OTHERS = {"AdmissionCheck", "Certificate", "Issuer"}
Document = dict[str, Any]


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


NAMES = ("webhook.yaml", "kueue.yaml")
ALL = [pytest.param(each, id=f"{name} {each['kind']}") for name in NAMES for each in documents(name)]


def one(name: str, kind: str) -> Document:
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


@pytest.mark.parametrize("document", ALL)
def test_every_object_is_one_that_its_api_takes(document: Document) -> None:
    if document["kind"] not in OF_OTHERS:
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    schema = REPOSITORY / "tests/deploy/chart/schemas" / f"{document['kind'].lower()}.json"
    jsonschema.validate(document, json.loads(schema.read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_pods_have_no_more_than_they_need(name: str) -> None:
    pod = one(name, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(volume.keys() & {"secret", "configMap"} for volume in pod["volumes"])
    assert container["resources"]["limits"]["memory"]
    ports = {port["name"] for port in container["ports"]}
    assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= ports
    named = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == named


@pytest.mark.parametrize("name", NAMES)
def test_the_rights_are_bound_to_the_pods_own_account(name: str) -> None:
    binding, account = one(name, "ClusterRoleBinding"), one(name, "ServiceAccount")["metadata"]

    assert binding["roleRef"]["name"] == one(name, "ClusterRole")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": "planner"}]
    assert one(name, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_a_webhook_that_is_away_stops_nobody_and_only_jobs_with_a_spec_are_sent() -> None:
    (hook,) = one("webhook.yaml", "ValidatingWebhookConfiguration")["webhooks"]

    assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Ignore", "NoneOnDryRun", 10)
    assert hook["admissionReviewVersions"] == ["v1"]
    (condition,) = hook["matchConditions"]
    assert all(f"'{key}' in object.metadata.annotations" in condition["expression"] for key in (BUNDLE, CONFIGMAP))
    sent = {(*rule["apiGroups"], tuple(rule["apiVersions"]), *rule["resources"]) for rule in hook["rules"]}
    assert sent == {(kind.group, kind.versions, kind.plural) for kind in KINDS.values()}
    assert {operation for rule in hook["rules"] for operation in rule["operations"]} == {"CREATE"}


def test_the_certificate_is_for_the_service_that_the_api_server_calls() -> None:
    hook = one("webhook.yaml", "ValidatingWebhookConfiguration")
    called, certificate = hook["webhooks"][0]["clientConfig"]["service"], one("webhook.yaml", "Certificate")
    service, pod = one("webhook.yaml", "Service"), one("webhook.yaml", "Deployment")["spec"]["template"]

    assert called == {"namespace": "planner", "name": service["metadata"]["name"], "path": "/validate", "port": 443}
    assert f"{called['name']}.{called['namespace']}.svc" in certificate["spec"]["dnsNames"]
    assert hook["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == "planner/planner-webhook"
    assert certificate["spec"]["secretName"] in {
        volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume
    }
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_check_is_ours() -> None:
    assert one("kueue.yaml", "AdmissionCheck")["spec"]["controllerName"] == CONTROLLER


@pytest.mark.parametrize(
    ("name", "hook", "expected"),
    [
        ("webhook.yaml", webhook, Policy(token="t", exceeds=Action.WARN)),
        ("kueue.yaml", kueue, Policy(token="t", exceeds=Action.REFUSE, pending=Action.HOLD, wait_seconds=60.0)),
    ],
)
def test_the_programs_take_what_the_manifests_give_them(name: str, hook: Any, expected: Policy, tmp_path: Path) -> None:
    (container,) = one(name, "Deployment")["spec"]["template"]["spec"]["containers"]
    (tmp_path / "token").write_text("t\n")
    text = one(name, "ConfigMap")["data"]["admission.ini"].replace("/etc/planner/token/token", f"{tmp_path}/token")
    (tmp_path / "admission.ini").write_text(text)

    given = shell._parser().parse_args([*container["command"][1:], *container["args"]])

    assert container["command"] == ["planner", name.removesuffix(".yaml")]
    assert given.policy == Path("/etc/planner/policy/admission.ini")
    assert Policy.read({}, tmp_path / "admission.ini", hook.USUAL) == expected
