"""How rendered objects hang together: selectors, ports, probes, references, addresses, and who may speak to whom."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rendered_chart
import yaml
from rendered_chart import VALUE_SETS, Document, Pod, of_kind, only, pods, rendered

from planner.admission import workload_kinds
from planner.admission.policy import Action, Policy

GIVEN = {
    "external": {"planner-writers", "planner-database", "planner-redis-password"},
    "webhook-given-certificate": {"planner-webhook-tls"},
}
"""Secrets that are there before the chart."""

every_set = pytest.mark.parametrize("name", VALUE_SETS)


def selected(selector: Mapping[str, Any], found: list[Pod]) -> list[Pod]:
    return [pod for pod in found if matches(selector, pod.labels)]


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items()
    return wanted <= labels.items() and all(holds(each, labels) for each in selector.get("matchExpressions", []))


def holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if expression["operator"] == "Exists":
        return expression["key"] in labels
    assert expression["operator"] == "In"
    return labels.get(expression["key"]) in expression["values"]


def ports_of(pod: Pod) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for container in pod.containers for each in container.get("ports", [])}


@every_set
def test_every_probe_asks_a_port_that_is_there(name: str) -> None:
    for pod in pods(rendered(name)):
        ports = ports_of(pod)
        for container in pod.containers:
            probes = [container[key] for key in container if key.endswith("Probe")]
            asked = [probe[how]["port"] for probe in probes for how in ("httpGet", "tcpSocket") if how in probe]
            assert {"readinessProbe", "livenessProbe"} <= container.keys(), pod.owner
            assert set(asked) <= ports.keys(), pod.owner


@every_set
def test_every_service_finds_pods_that_have_its_port(name: str) -> None:
    for service in of_kind(rendered(name), "Service"):
        found = selected({"matchLabels": service["spec"]["selector"]}, pods(rendered(name)))
        assert len(found) == 1, service["metadata"]["name"]
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in ports_of(found[0])


@every_set
def test_every_controller_finds_its_own_pods_and_no_others(name: str) -> None:
    found = pods(rendered(name))
    for each in rendered(name):
        if each["kind"] in rendered_chart.WITH_PODS:
            chosen = selected(each["spec"]["selector"], found)
            assert [pod.owner for pod in chosen] == [f"{each['kind']} {each['metadata']['name']}"]


@every_set
def test_budgets_policies_and_monitors_find_pods(name: str) -> None:
    found = pods(rendered(name))
    selectors = [each["spec"]["selector"] for kind in ("PodDisruptionBudget", "PodMonitor")
                 for each in of_kind(rendered(name), kind)]  # fmt: skip
    selectors += [each["spec"]["podSelector"] for each in of_kind(rendered(name), "NetworkPolicy")]

    assert [each for each in selectors if not selected(each, found)] == []


@every_set
def test_constraints_spread_the_pods_that_have_them(name: str) -> None:
    for pod in pods(rendered(name)):
        for constraint in pod.spec.get("topologySpreadConstraints", []):
            assert matches(constraint["labelSelector"], pod.labels), pod.owner


def test_prometheus_finds_the_service_and_rays_pods() -> None:
    """KubeRay makes the Service from what the RayService says of it, and keeps its labels (v1.7, service.go)."""
    found = rendered("monitoring")
    service = only(found, "RayService")["spec"]["serveService"]
    monitor, of_ray = only(found, "ServiceMonitor")["spec"], only(found, "PodMonitor")["spec"]

    assert matches(monitor["selector"], service["metadata"]["labels"])
    assert [each["port"] for each in monitor["endpoints"]] == [each["name"] for each in service["spec"]["ports"]]
    assert [each["path"] for each in monitor["endpoints"]] == ["/metrics"]
    chosen = selected(of_ray["selector"], pods(found))
    assert [pod.owner for pod in chosen] == ["RayService headgroup", "RayService workers"]
    assert all(ports_of(pod)[each["port"]] == 8080 for pod in chosen for each in of_ray["podMetricsEndpoints"])
    kinds = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
    assert {only(found, kind)["metadata"]["labels"]["release"] for kind in kinds} == {"prometheus"}


def test_a_budget_leaves_nodes_free_to_drain() -> None:
    budgets = of_kind(rendered("external"), "PodDisruptionBudget")

    assert [each["spec"]["minAvailable"] for each in budgets] == [1]
    (workers,) = only(rendered("external"), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["minReplicas"] == 3


def references(pod: Pod) -> Iterator[tuple[str, str]]:
    """What a pod refers to, as kind and name."""
    yield "ServiceAccount", pod.spec["serviceAccountName"]
    for volume in pod.spec.get("volumes", []):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    for container in pod.containers:
        for variable in container.get("env", []):
            if "secretKeyRef" in variable.get("valueFrom", {}):
                yield "Secret", variable["valueFrom"]["secretKeyRef"]["name"]


@every_set
def test_everything_that_is_referred_to_is_there_or_given(name: str) -> None:
    found = rendered(name)
    there = {(each["kind"], each["metadata"]["name"]) for each in found}
    there |= {("Secret", each["spec"]["secretName"]) for each in of_kind(found, "Certificate")}
    there |= {("Secret", secret) for secret in GIVEN.get(name, ())} | {("ConfigMap", "api-server-ca")}
    options = only(found, "RayService")["spec"]["rayClusterConfig"].get("gcsFaultToleranceOptions", {})
    wanted = {each for pod in pods(found) for each in references(pod)}
    if "redisPassword" in options:
        wanted.add(("Secret", options["redisPassword"]["valueFrom"]["secretKeyRef"]["name"]))

    assert wanted - there == set()
    used = {secret for kind, secret in wanted if kind == "Secret"}
    assert {each["metadata"]["name"] for each in of_kind(found, "Secret")} <= used


@every_set
def test_every_key_of_a_secret_that_is_asked_for_is_in_it(name: str) -> None:
    found = rendered(name)
    keys = {each["metadata"]["name"]: each["data"].keys() for each in of_kind(found, "Secret")}
    for pod in pods(found):
        for container in pod.containers:
            for variable in container.get("env", []):
                asked = variable.get("valueFrom", {}).get("secretKeyRef")
                assert not asked or asked["name"] not in keys or asked["key"] in keys[asked["name"]]
        for volume in pod.spec.get("volumes", []):
            secret = volume.get("secret", {})
            if secret.get("secretName") in keys:
                assert {each["key"] for each in secret["items"]} <= keys[secret["secretName"]]


@every_set
def test_mounts_have_their_volumes_and_volumes_their_mounts(name: str) -> None:
    for pod in pods(rendered(name)):
        volumes = {each["name"] for each in pod.spec.get("volumes", [])}
        claims = {"data"} if pod.owner.startswith("StatefulSet") else set()
        mounted = {each["name"] for container in pod.containers for each in container["volumeMounts"]}
        assert mounted == volumes | claims, pod.owner


@every_set
def test_what_writes_has_a_place_for_it(name: str) -> None:
    """On a root file system that is read-only: /tmp, and HOME below it where programs look for one."""
    for pod in pods(rendered(name)):
        for container in pod.containers:
            paths = {each["mountPath"] for each in container["volumeMounts"]}
            assert "/tmp" in paths, pod.owner
            if pod.owner.startswith("RayService"):
                assert {"name": "HOME", "value": "/tmp"} in container["env"]


def environment(name: str, group: str = "headgroup") -> dict[str, Any]:
    (pod,) = [each for each in pods(rendered(name)) if each.owner == f"RayService {group}"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod.containers[0]["env"]}


def test_the_embedded_database_is_where_the_service_looks_for_it() -> None:
    database = only_named(rendered("embedded"), "Service", "jobs-planner-postgresql")

    assert environment("embedded")["PLANNER_DATABASE"] == (
        "postgresql://planner:$(PLANNER_DATABASE_PASSWORD)@jobs-planner-postgresql:5432/planner"
    )
    assert database["spec"]["ports"][0]["port"] == 5432
    names = list(environment("embedded"))
    assert names.index("PLANNER_DATABASE_PASSWORD") < names.index("PLANNER_DATABASE"), "else it is not filled in"


def test_an_external_database_is_named_by_a_secret() -> None:
    assert environment("external")["PLANNER_DATABASE"] == {
        "secretKeyRef": {"name": "planner-database", "key": "address"}
    }


def test_a_small_service_writes_its_history_to_its_volume() -> None:
    (pod,) = pods(rendered("small"))

    assert environment("small")["PLANNER_DATABASE"] == "sqlite:////var/lib/planner/planner.sqlite"
    assert {"name": "database", "mountPath": "/var/lib/planner"} in pod.containers[0]["volumeMounts"]


@every_set
def test_head_and_workers_are_told_the_same(name: str) -> None:
    """Serve builds the application on whatever node it likes."""
    found = [pod.containers[0]["env"] for pod in pods(rendered(name)) if pod.owner.startswith("RayService")]

    assert all(each == found[0] for each in found)


def only_named(found: tuple[Document, ...], kind: str, name: str) -> Document:
    (one,) = [each for each in of_kind(found, kind) if each["metadata"]["name"] == name]
    return one


def test_rays_head_finds_its_redis() -> None:
    embedded = only(rendered("embedded"), "RayService")["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]
    external = only(rendered("external"), "RayService")["spec"]["rayClusterConfig"]["gcsFaultToleranceOptions"]

    assert embedded["redisAddress"] == "jobs-planner-redis:6379"
    assert only_named(rendered("embedded"), "Service", "jobs-planner-redis")["spec"]["ports"][0]["port"] == 6379
    assert external["redisAddress"] == "rediss://redis.data.svc:6380"


@pytest.mark.parametrize("name", ["webhook-cert-manager", "webhook-given-certificate", "kueue"])
def test_the_policy_of_a_door_is_one_that_it_takes(name: str, tmp_path: Path) -> None:
    (text,) = [each["data"]["admission.ini"] for each in of_kind(rendered(name), "ConfigMap")]
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read_string(text)
    token = tmp_path / "token"
    token.write_text("secret")
    file = tmp_path / "admission.ini"
    file.write_text(text.replace("/etc/planner/token/token", str(token)))

    policy = Policy.read({}, file)

    assert policy.server == "http://jobs-planner.mlops.svc:8642"
    assert policy.token == "secret"
    expected = {"webhook-cert-manager": Action.WARN}.get(name, Action.REFUSE)
    assert policy.exceeds is expected


def test_doors_ask_the_service_where_it_is() -> None:
    service = only(rendered("kueue"), "RayService")["spec"]["serveService"]
    (head,) = [pod for pod in pods(rendered("kueue")) if pod.owner == "RayService headgroup"]

    assert service["metadata"]["name"] == "jobs-planner"
    assert service["spec"]["ports"] == [{"name": "serve", "port": 8642, "targetPort": "serve"}]
    assert ports_of(head)["serve"] == 8642


@pytest.mark.parametrize("name", ["webhook-cert-manager", "kueue"])
def test_a_door_starts_anew_when_its_policy_changes(name: str) -> None:
    hook = "webhook" if name.startswith("webhook") else "kueue"
    changed = rendered_chart.values_of(name)
    changed[hook] = {**changed[hook], "policy": {"tight": "refuse"}}

    def stamp(found: tuple[Document, ...]) -> str:
        return str(only(found, "Deployment")["spec"]["template"]["metadata"]["annotations"]["planner.dev/policy"])

    assert stamp(rendered(name)) != stamp(rendered_chart.objects(changed))


def test_the_api_server_finds_the_webhook_and_trusts_its_certificate() -> None:
    found = rendered("webhook-cert-manager")
    configuration = only(found, "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    certificate = only(found, "Certificate")
    (webhook_pod,) = [pod for pod in pods(found) if pod.owner == "Deployment jobs-planner-webhook"]
    service = only_named(found, "Service", "jobs-planner-webhook")

    assert webhook["clientConfig"]["service"] == {
        "name": "jobs-planner-webhook", "namespace": "mlops", "path": "/validate", "port": 443,
    }  # fmt: skip
    assert service["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
    assert ports_of(webhook_pod) == {"https": 8443}
    assert "--port=8443" in webhook_pod.containers[0]["args"]
    assert "jobs-planner-webhook.mlops.svc" in certificate["spec"]["dnsNames"]
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == "mlops/jobs-planner-webhook"
    assert certificate["spec"]["issuerRef"] == {"kind": "Issuer", "name": only(found, "Issuer")["metadata"]["name"]}


def test_the_webhook_answers_only_who_shows_a_certificate_unless_somebody_says_that_none_can() -> None:
    ((strict_args, strict_volumes), (open_args, open_volumes)) = (
        (found.containers[0]["args"], {volume["name"]: volume for volume in found.spec["volumes"]})
        for name in ("webhook-cert-manager", "webhook-given-certificate")
        for found in pods(rendered(name))
        if found.owner == "Deployment jobs-planner-webhook"
    )

    assert {"--client-ca=/etc/planner/clients/ca.crt", "--client-name=planner-webhook-client"} <= set(strict_args)
    assert strict_volumes["clients"]["configMap"] == {"name": "api-server-ca"}
    assert "--any-client" not in strict_args
    assert [each for each in open_args if each.startswith(("--client", "--any"))] == ["--any-client"]
    assert "clients" not in open_volumes


def test_a_given_certificate_is_believed_by_what_signed_it() -> None:
    found = rendered("webhook-given-certificate")
    configuration = only(found, "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]

    assert webhook["clientConfig"]["caBundle"].startswith("LS0tLS1CRUdJTi")
    assert "annotations" not in configuration["metadata"]
    assert of_kind(found, "Certificate") == []


def test_a_webhook_that_is_away_stops_nobody_unless_somebody_wants_that() -> None:
    (careful,) = only(rendered("webhook-cert-manager"), "ValidatingWebhookConfiguration")["webhooks"]
    (strict,) = only(rendered("webhook-given-certificate"), "ValidatingWebhookConfiguration")["webhooks"]

    assert (careful["failurePolicy"], strict["failurePolicy"]) == ("Ignore", "Fail")
    assert [each["name"] for each in careful["matchConditions"]] == ["names-a-spec"]


def test_a_site_that_insists_on_specs_is_asked_about_every_pod_with_a_gpu_and_every_kind_of_job() -> None:
    (careful,) = only(rendered("webhook-cert-manager"), "ValidatingWebhookConfiguration")["webhooks"]
    (strict,) = only(rendered("webhook-given-certificate"), "ValidatingWebhookConfiguration")["webhooks"]

    assert strict["rules"] == careful["rules"]
    sent = {(*each["apiGroups"], tuple(each["apiVersions"]), *each["resources"]) for each in strict["rules"]}
    assert sent == {(kind.group, kind.versions, kind.plural) for kind in workload_kinds.KINDS.values()}
    (condition,) = strict["matchConditions"]
    assert condition["name"] == "no-pod-without-a-gpu"
    assert f"'^{workload_kinds._ANY_GPU.pattern}$'" in condition["expression"]


def test_the_webhook_checks_the_same_jobs_as_the_manifests_without_helm() -> None:
    text = (rendered_chart.REPOSITORY / "deploy" / "kubernetes" / "webhook.yaml").read_text(encoding="utf-8")
    documents = tuple(each for each in yaml.safe_load_all(text) if each)
    (plain,) = only(documents, "ValidatingWebhookConfiguration")["webhooks"]
    (ours,) = only(rendered("webhook-cert-manager"), "ValidatingWebhookConfiguration")["webhooks"]

    def rules(webhook: Document) -> list[str]:
        return sorted(f"{each['apiGroups']} {each['apiVersions']} {each['resources']}" for each in webhook["rules"])

    assert rules(ours) == rules(plain)
    assert [each["expression"] for each in ours["matchConditions"]] == [
        each["expression"] for each in plain["matchConditions"]
    ]
    for field in ("name", "failurePolicy", "sideEffects", "matchPolicy", "timeoutSeconds", "admissionReviewVersions"):
        assert ours[field] == plain[field], field


def test_the_webhook_lets_the_planner_itself_alone() -> None:
    """Else KubeRay's own jobs would wait for the service that they belong to."""
    (webhook,) = only(rendered("webhook-cert-manager"), "ValidatingWebhookConfiguration")["webhooks"]

    assert webhook["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "mlops"]}
    ]


@every_set
def test_network_policies_let_through_what_the_parts_need(name: str) -> None:
    found = pods(rendered(name))
    policies = of_kind(rendered(name), "NetworkPolicy")
    if not policies:
        return
    ray = [pod for pod in found if pod.owner.startswith("RayService")]
    stores = [pod for pod in found if pod.owner.startswith("StatefulSet")]
    hooks = [pod for pod in found if pod.owner.startswith("Deployment")]

    wanted = [(one, store, only_port(store)) for one in ray for store in stores]
    wanted += [(hook, one, 8642) for hook in hooks for one in ray]
    wanted += [(one, other, 10002) for one in ray for other in ray]

    for source, target, port in wanted:
        assert may_send(policies, source, target, port), f"{source.owner} to {target.owner}"
        assert may_receive(policies, target, source, port), f"{target.owner} from {source.owner}"
    for store in stores:
        for hook in hooks:
            assert not may_receive(policies, store, hook, only_port(store)), f"{hook.owner} to {store.owner}"


def only_port(pod: Pod) -> int:
    (port,) = ports_of(pod).values()
    return port


def may_send(policies: list[Document], source: Pod, target: Pod, port: int) -> bool:
    rules = [rule for each in policies if concerns(each, source, "Egress") for rule in each["spec"]["egress"]]
    return any(lets(rule, "to", target, port) for rule in rules)


def may_receive(policies: list[Document], target: Pod, source: Pod, port: int) -> bool:
    rules = [rule for each in policies if concerns(each, target, "Ingress") for rule in each["spec"]["ingress"]]
    return any(lets(rule, "from", source, port) for rule in rules)


def concerns(policy: Document, pod: Pod, direction: str) -> bool:
    return direction in policy["spec"]["policyTypes"] and matches(policy["spec"]["podSelector"], pod.labels)


def lets(rule: Document, side: str, pod: Pod, port: int) -> bool:
    """Within one namespace, which all pods of the chart share."""
    open_ports = [each["port"] for each in rule["ports"]] if "ports" in rule else [port]
    peers = rule.get(side)
    chosen = peers is None or any(
        matches(peer["podSelector"], pod.labels)
        for peer in peers
        if "namespaceSelector" not in peer and "podSelector" in peer
    )
    return chosen and port in open_ports


def test_validators_are_found_by_their_gpu() -> None:
    found = only(rendered("gpu-validators"), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    groups = {each["groupName"]: each for each in found}
    h100, a100 = groups["validators-h100"], groups["validators-a100-40g"]

    assert h100["labels"]["ray.io/accelerator-type"] == "H100"
    assert h100["rayStartParams"]["num-gpus"] == "1"
    assert a100["rayStartParams"]["num-gpus"] == "2"
    assert {each["rayStartParams"]["num-cpus"] for each in (h100, a100)} == {"0"}
    resources = a100["template"]["spec"]["containers"][0]["resources"]
    assert resources == {
        "requests": {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "2"},
    }
    assert a100["template"]["spec"]["runtimeClassName"] == "nvidia"
    assert h100["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert h100["template"]["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"


@pytest.mark.parametrize("name", ["gpu-validators", "air-gapped"])
def test_the_service_knows_the_gpus_of_its_validators(name: str) -> None:
    """By the label that Ray gives the nodes, as the validations look for them."""
    from planner.hardware import catalog
    from planner.service.validation import measuring_workers

    groups = only(rendered(name), "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    kinds = [each["labels"][measuring_workers.LABEL] for each in groups if measuring_workers.LABEL in each["labels"]]

    assert kinds
    for kind in kinds:
        node = measuring_workers.Node(name="one", gpus=1, kind=kind, labelled=True)
        assert any(measuring_workers.suiting([node], gpu_of(name_of)) for name_of in catalog.names()), kind


def gpu_of(name: str) -> Any:
    from planner.job.schema import Gpu

    return Gpu(name=name)
