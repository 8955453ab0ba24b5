"""What an attacker finds in a rendered chart: nobody's root, nothing to write on, no secret in the open, few rights."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import rendered_chart
import yaml
from rendered_chart import VALUE_SETS, Document, Pod, of_kind, only, pods, rendered

from planner.admission.workload_kinds import KINDS

CONTAINER = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""More than the Pod Security Standard `restricted` wants: that has nothing on the root file system."""

NEEDS_KUBERNETES = {
    "RayService head": "the autoscaler creates and removes workers",
    "Deployment jobs-planner-webhook": "ConfigMaps with specs, claims of GPUs",
    "Deployment jobs-planner-kueue": "workloads, and their owners",
}

MAY = {
    "webhook": {
        ("", "configmaps", "get"),
        ("resource.k8s.io", "resourceclaims", "get"),
        ("resource.k8s.io", "resourceclaimtemplates", "get"),
    },
    "kueue": {
        ("", "configmaps", "get"),
        ("", "events", "create"),
        *((kind.group, kind.plural, "get") for kind in KINDS.values()),
        *(
            ("kueue.x-k8s.io", resource, verb)
            for resource in ("workloads", "admissionchecks")
            for verb in ("get", "list", "watch")
        ),
        ("kueue.x-k8s.io", "resourceflavors", "get"),
        ("kueue.x-k8s.io", "workloads/status", "patch"),
        ("kueue.x-k8s.io", "admissionchecks/status", "patch"),
    },
}
"""Everything that the chart's own rights allow, as group, resource, verb."""

every_set = pytest.mark.parametrize("name", VALUE_SETS)


def texts(value: Any) -> Iterator[str]:
    """Every text in an object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (str(key), *texts(each))
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


@every_set
def test_every_container_is_shut_in(name: str) -> None:
    for pod in pods(rendered(name)):
        for container in pod.containers:
            assert container["securityContext"] == CONTAINER, (pod.owner, container["name"])


@every_set
def test_every_pod_runs_as_somebody_who_is_not_root(name: str) -> None:
    for pod in pods(rendered(name)):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True, pod.owner
        assert min(context["runAsUser"], context["runAsGroup"], context["fsGroup"]) > 0, pod.owner
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys(), pod.owner


@every_set
def test_the_container_that_kuberay_adds_is_shut_in_as_well(name: str) -> None:
    cluster = only(rendered(name), "RayService")["spec"]["rayClusterConfig"]
    if not cluster["enableInTreeAutoscaling"]:
        assert "autoscalerOptions" not in cluster
        return

    assert cluster["autoscalerOptions"]["securityContext"] == CONTAINER
    assert cluster["autoscalerOptions"]["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]


@every_set
def test_volumes_are_empty_or_a_stores_own_or_read_only(name: str) -> None:
    for pod in pods(rendered(name)):
        kinds = {each["name"]: next(key for key in each if key != "name") for each in pod.spec.get("volumes", [])}
        assert set(kinds.values()) <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}, pod.owner
        for container in pod.containers:
            for mount in container.get("volumeMounts", []):
                if kinds.get(mount["name"]) in ("secret", "configMap"):
                    assert mount["readOnly"] is True, (pod.owner, mount)


@every_set
def test_only_who_speaks_to_kubernetes_has_a_token_for_it(name: str) -> None:
    with_token = {pod.owner.replace("headgroup", "head") for pod in pods(rendered(name)) if holds_a_token(pod)}
    there = {pod.owner.replace("headgroup", "head") for pod in pods(rendered(name))}
    autoscaling = only(rendered(name), "RayService")["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]

    assert with_token == (NEEDS_KUBERNETES.keys() & there) - (set() if autoscaling else {"RayService head"})
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(rendered(name), "ServiceAccount"))


def holds_a_token(pod: Pod) -> bool:
    return bool(pod.spec.get("automountServiceAccountToken", True))


def test_where_the_head_has_a_token_it_runs_nobodys_work() -> None:
    """Replicas, traces and the code of users run on workers, which have none."""
    for name in VALUE_SETS:
        cluster = only(rendered(name), "RayService")["spec"]["rayClusterConfig"]
        if cluster["enableInTreeAutoscaling"]:
            assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@every_set
def test_a_secrets_value_stands_in_a_secret_only(name: str) -> None:
    found = rendered(name)
    values = {base64.b64decode(value).decode() for each in of_kind(found, "Secret") for value in each["data"].values()}
    hidden = values | {base64.b64encode(value.encode()).decode() for value in values}
    elsewhere = [text for each in found if each["kind"] != "Secret" for text in texts(each)]

    assert [text for text in elsewhere if any(value in text for value in hidden)] == []
    assert all(len(value) >= 40 for value in values)


def test_the_digest_of_the_token_is_that_of_the_token() -> None:
    """With it the service admits who has the token, and holds nothing that would."""
    import hashlib

    (data,) = [
        each["data"] for each in of_kind(rendered("embedded"), "Secret") if each["metadata"]["name"].endswith("-token")
    ]
    token = base64.b64decode(data["token"])

    assert base64.b64decode(data["token-sha256"]).decode() == hashlib.sha256(token).hexdigest()
    assert len({each for _ in range(2) for each in fresh_tokens()}) == 2


def fresh_tokens() -> list[str]:
    found = rendered_chart.objects({})
    return [each["data"]["token"] for each in of_kind(found, "Secret") if "token" in each["data"]]


@every_set
def test_secrets_reach_processes_by_reference(name: str) -> None:
    for pod in pods(rendered(name)):
        for container in pod.containers:
            for variable in container.get("env", []):
                secret = any(word in variable["name"] for word in ("PASSWORD", "TOKEN", "KEY", "SECRET"))
                assert not secret or "valueFrom" in variable or variable["name"].endswith("_FILE"), variable["name"]


@every_set
def test_rights_are_those_that_are_written_down_here(name: str) -> None:
    for role in [*of_kind(rendered(name), "ClusterRole"), *of_kind(rendered(name), "Role")]:
        assert allowed_by(role) == MAY[role["metadata"]["labels"]["app.kubernetes.io/component"]]


def allowed_by(role: Document) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("hook", ["webhook", "kueue"])
def test_the_manifests_without_helm_give_the_same_rights(hook: str) -> None:
    text = (rendered_chart.REPOSITORY / "deploy" / "kubernetes" / f"{hook}.yaml").read_text(encoding="utf-8")
    (role,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "ClusterRole"]

    assert allowed_by(role) == MAY[hook]


def test_no_right_is_a_wildcard_or_touches_secrets() -> None:
    for allowed in MAY.values():
        for group, resource, verb in allowed:
            assert "*" not in (group, resource, verb)
            assert resource != "secrets"


def test_a_webhook_for_some_namespaces_reads_in_those_only() -> None:
    found = rendered("webhook-given-certificate")

    assert of_kind(found, "ClusterRoleBinding") == []
    assert {each["metadata"]["namespace"] for each in of_kind(found, "RoleBinding")} == {"training", "research"}
    (webhook,) = only(found, "ValidatingWebhookConfiguration")["webhooks"]
    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["training", "research"]}
    ]


@every_set
def test_every_image_comes_from_the_registry_that_is_named(name: str) -> None:
    registry = rendered_chart.values_of(name).get("global", {}).get("imageRegistry", "")
    images = {container["image"] for pod in pods(rendered(name)) for container in pod.containers}

    assert all(image.startswith(registry) for image in images)
    assert all("@sha256:" in image or not image.endswith(":latest") for image in images)
    assert all(":" in image.removeprefix(registry) for image in images)


def test_only_the_operator_speaks_to_rays_own_interfaces() -> None:
    """Who reaches Ray's dashboard or GCS runs code in the cluster."""
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("external"), "NetworkPolicy")}
    inside, operator, clients, scrapers = policies["jobs-planner-ray"]["ingress"]

    assert [peer.keys() for peer in inside["from"]] == [{"podSelector"}]
    assert {each["port"] for each in operator["ports"]} == {"dashboard", "agent", "serve"}
    assert clients == {
        "ports": [{"protocol": "TCP", "port": 8642}],
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "training"}}}],
    }
    assert {each["port"] for each in scrapers["ports"]} == {8080, 8642}


def test_ray_itself_wants_a_token_of_who_speaks_to_it() -> None:
    assert only(rendered("embedded"), "RayService")["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}


def test_stores_answer_nobody_but_ray_and_ask_nobody() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(rendered("embedded"), "NetworkPolicy")}

    for store in ("jobs-planner-postgresql", "jobs-planner-redis"):
        (rule,) = policies[store]["ingress"]
        (peer,) = rule["from"]
        assert peer["podSelector"]["matchExpressions"] == [{"key": "ray.io/node-type", "operator": "Exists"}]
        assert policies[store]["egress"] == []


def test_the_policy_of_a_hook_holds_no_token() -> None:
    for name in ("webhook-cert-manager", "kueue"):
        text = next(each["data"]["admission.ini"] for each in of_kind(rendered(name), "ConfigMap"))
        assert "token_file = /etc/planner/token/token" in text
        assert "\ntoken =" not in text
