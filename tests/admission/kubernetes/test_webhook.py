"""The webhook as the API server meets it: its own process, TLS with a CA of this test, the real service behind it."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificate_authority import Authority
from cryptography import x509
from emulated_cluster import Cluster, emulated_cluster, until
from kubernetes_jobs import KINDS
from real_service import PlansHere

from planner import cli
from planner.admission.webhook import LONGEST_WARNING

BUNDLE, CONFIGMAP = "planner.dev/bundle", "planner.dev/spec-configmap"
TINY = "{total_bytes: 1.9GiB, arch: sm_90}"
REFUSES = "exceeds = refuse\nrefuse_uncalibrated = yes"
Make = Callable[..., dict[str, Any]]


@dataclass
class Running:
    """A webhook that answers."""

    port: int
    authority: Authority
    certificate: Path
    key: Path
    log: Path
    plans: PlansHere
    shown: tuple[Path, Path] | None = None
    """The certificate and key that clients show."""

    def connection(self) -> http.client.HTTPSConnection:
        context = self.authority.context
        if self.shown is not None:
            context.load_cert_chain(*self.shown)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=300, context=context)

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, dict[str, Any] | str]:
        connection = self.connection()
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, json.loads(text) if "json" in (answer.getheader("Content-Type") or "") else text

    def review(self, review: dict[str, Any], query: str = "?timeout=30s") -> dict[str, Any]:
        """The response to a review, as the API server takes it; where a plan was made for it, however long that takes,
        the response to the same review afterwards."""
        begun = self.plans.begun
        found = self._review(review, query)
        if self.plans.begun > begun:
            until(lambda: self.plans.begun == self.plans.ended)
            found = self._review(review, query)
        return found

    def _review(self, review: dict[str, Any], query: str) -> dict[str, Any]:
        status, found = self.ask("POST", f"/validate{query}", json.dumps(review).encode())
        assert isinstance(found, dict)
        assert (status, found["apiVersion"], found["kind"]) == (200, "admission.k8s.io/v1", "AdmissionReview")
        assert found["response"].pop("uid") == review["request"]["uid"]
        assert all(len(each) <= LONGEST_WARNING for each in found["response"].get("warnings", []))
        return dict(found["response"])

    def serial(self) -> int:
        """Of the certificate that it shows now."""
        plain = socket.create_connection(("127.0.0.1", self.port), 10)
        with self.authority.context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts webhooks under a policy; a policy that was started before is the same webhook."""
    running: dict[str, tuple[Running, subprocess.Popen[bytes]]] = {}

    def begin(policy: str = "", options: tuple[str, ...] = (), **environment: str) -> Running:
        known = policy + repr((options, sorted(environment.items())))
        if known not in running:
            folder = tmp_path_factory.mktemp("webhook")
            running[known] = _begin(folder, service, policy, environment, options)
        return running[known][0]

    yield begin
    for _, process in running.values():
        process.terminate()
    codes = {process.wait(300) for _, process in running.values()}
    assert codes <= {0, -15}  # uvicorn ends in order, and then by the signal itself
    for found, _ in running.values():
        assert "Traceback" not in found.log.read_text()


def _begin(
    folder: Path, service: Any, policy: str, environment: dict[str, str], options: tuple[str, ...]
) -> tuple[Running, subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Running(
        port, Authority(folder), folder / "tls.crt", folder / "tls.key", folder / "log", service.plan_provider
    )
    found.authority.issue(found.certificate, found.key)
    (folder / "admission.ini").write_text(f"[admission]\n{policy}\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PLANNER", "KUBE"))}
    command = [
        *(sys.executable, "-m", "planner", "webhook", "--host", "127.0.0.1", "--port", str(port)),
        *("--certificate", str(found.certificate), "--key", str(found.key)),
        *("--policy", str(folder / "admission.ini"), *(options or ("--any-client",))),
    ]
    with found.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**clean, "PLANNER_SERVER": service.url, "PLANNER_TOKEN": service.token, **environment},
        )

    def ready() -> bool:
        assert process.poll() is None, found.log.read_text()
        with contextlib.suppress(OSError):
            return found.ask("GET", "/readyz")[0] == 200
        return False

    until(ready)
    return found, process


def test_it_answers_probes_over_tls(start: Start) -> None:
    assert [start().ask("GET", path) for path in ("/livez", "/readyz")] == [(200, "ok\n"), (200, "ok\n")]


def test_who_does_not_trust_its_ca_does_not_speak_with_it(start: Start) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", start().port, context=ssl.create_default_context())

    with pytest.raises(ssl.SSLCertVerificationError):
        connection.request("GET", "/livez")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    """Certificates of clients, by who signed them and for which name."""
    folder = tmp_path_factory.mktemp("clients")
    authorities = {}
    for name in ("control plane", "somebody"):
        (folder / name).mkdir()
        authorities[name] = Authority(folder / name)

    def issue(signer: str, name: str) -> tuple[Path, Path]:
        files = authorities[signer].folder / f"{name}.crt", authorities[signer].folder / f"{name}.key"
        authorities[signer].issue(*files, name)
        return files

    return issue


@pytest.mark.parametrize(
    ("signer", "name", "status"),
    [("control plane", "kube-apiserver", 200), ("control plane", "kubelet", 401), ("", "", 401),
     ("somebody", "kube-apiserver", 0)],
    ids=["the API server", "another client of its CA", "no certificate", "another CA"],
)  # fmt: skip
def test_only_the_api_server_is_answered_where_clients_have_to_show_a_certificate(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str],
    clients: Callable[[str, str], tuple[Path, Path]], signer: str, name: str, status: int,
) -> None:  # fmt: skip
    ca = clients("control plane", "kube-apiserver")[0].parent / "ca.crt"
    running = start(options=("--client-ca", str(ca), "--client-name", "kube-apiserver"))
    job = make_job("Job", {BUNDLE: spec_text()}, name=f"shown-{status}-{name}")
    asking = dataclasses.replace(running, shown=clients(signer, name) if signer else None)
    body = json.dumps(make_review(job)).encode()

    if not status:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            asking.ask("POST", "/validate?timeout=30s", body)
    else:
        found, answered = asking.ask("POST", "/validate?timeout=30s", body)
        assert (found, isinstance(answered, dict) and "response" in answered) == (status, status == 200)
    if status == 200:
        until(lambda: service.history.jobs.get("kubernetes", job["metadata"]["uid"]))
    else:
        assert service.history.jobs.get("kubernetes", job["metadata"]["uid"]) is None
    assert running.ask("GET", "/readyz") == (200, "ok\n")  # a probe of the kubelet shows none


def test_a_job_keeps_the_plan_that_it_was_created_with(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    first, second = (make_job("Job", {BUNDLE: spec_text(name)}, name="bound") for name in ("small", "other"))
    second["metadata"]["annotations"][BUNDLE] = spec_text("other").replace("layers: 4", "layers: 5")
    uid = first["metadata"]["uid"]
    webhook = start()

    plan_id = webhook.review(make_review(first))["auditAnnotations"]["plan-id"]
    until(lambda: service.history.jobs.get("kubernetes", uid))
    other = webhook.review(make_review(second))["auditAnnotations"]["plan-id"]
    until(lambda: f"is not bound to {other}: it has the plan" in webhook.log.read_text())

    assert other != plan_id
    assert service.history.jobs.get("kubernetes", uid).plan_id == plan_id


def test_a_job_of_more_containers_than_are_read_is_planned_as_its_spec_says(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    """Or a container more were a way around a site that refuses."""
    job = make_job("Job", {BUNDLE: spec_text("large", TINY)}, name="crowded")
    pod = job["spec"]["template"]["spec"]
    pod["containers"] = [{**pod["containers"][0], "name": f"c{place}"} for place in range(2_500)]

    found = start(REFUSES).review(make_review(job))
    warned = start().review(make_review(job))

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (False, "exceeds")
    assert "planner: the job has 2,500 containers, more than are read: planned as the spec says" in warned["warnings"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_fits_goes_its_way_and_is_bound_to_its_plan(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str], kind: str
) -> None:
    job = make_job(kind, {BUNDLE: spec_text()})

    found = start().review(make_review(job))

    plan_id = found["auditAnnotations"]["plan-id"]
    assert found == {
        "allowed": True,
        "auditAnnotations": {"action": "admit", "verdict": "fits", "plan-id": plan_id},
    }
    bound = until(lambda: service.history.jobs.get("kubernetes", job["metadata"]["uid"]))
    assert bound.plan_id == plan_id


def test_a_job_that_does_not_fit_is_warned_unless_the_site_says_refuse(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    found = start().review(make_review(make_job("RayJob", {BUNDLE: spec_text("large", TINY)})))

    plan_id = found["auditAnnotations"]["plan-id"]
    assert found["allowed"]
    assert found["auditAnnotations"] == {"action": "warn", "verdict": "exceeds", "plan-id": plan_id}
    first, change, plan = found["warnings"]
    assert first.startswith("planner: large does not fit: rank 0 needs ")
    assert ", 1.90 GiB available (sm_90); peak in " in first
    assert change.startswith("planner: the smallest change that fits: ")
    assert plan == f"planner: the plan is {plan_id}"


def test_a_refused_job_hears_what_by_how_much_on_which_rank_and_what_would_fit(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    job = make_job("PyTorchJob", {BUNDLE: spec_text("large", TINY)}, name="refused")

    found = start(REFUSES).review(make_review(job))

    assert not found["allowed"]
    assert (found["status"]["code"], found["status"]["reason"]) == (403, "Forbidden")
    reason, change = found["status"]["message"].splitlines()
    assert reason.startswith("planner: refused: large does not fit: rank 0 needs ")
    assert change.startswith("planner: the smallest change that fits: ")
    assert "warnings" not in found
    assert service.history.jobs.get("kubernetes", job["metadata"]["uid"]) is None


def test_a_spec_in_a_config_map_of_the_jobs_namespace(
    start: Start, make_job: Make, make_review: Make, cluster: Cluster
) -> None:
    webhook = start(KUBECONFIG=str(cluster.kubeconfig))
    for named in ("specs", "specs/other.yaml"):
        job = make_job("RayJob", {CONFIGMAP: named})
        assert webhook.review(make_review(job))["auditAnnotations"]["verdict"] == "fits"

    paths = {each.url.path for each in cluster.requests if each.name == "specs" and each.method == "GET"}
    assert paths == {"/api/v1/namespaces/team-nlp/configmaps/specs"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spec_text: Callable[..., str]) -> Iterator[Cluster]:
    with emulated_cluster(tmp_path_factory.mktemp("cluster")) as found:
        found.add(
            "/api/v1/namespaces/team-nlp/configmaps",
            {
                "metadata": {"name": "specs", "namespace": "team-nlp"},
                "data": {"job.yaml": spec_text(), "other.yaml": spec_text("other")},
            },
        )
        yield found


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("absent", "there is not a ConfigMap absent in team-nlp"),
        ("specs/absent.yaml", "the ConfigMap specs has no text under absent.yaml"),
        ("../secrets/token", "is not a ConfigMap"),
        ("team-other/specs/job.yaml", "is not a ConfigMap"),
        ("specs?x=y", "is not a ConfigMap"),
        ("http://elsewhere/job.yaml", "is not a ConfigMap"),
        ("specs/..", "is not a ConfigMap"),
        ("", "is not a ConfigMap"),
    ],
)
def test_a_job_cannot_make_the_webhook_read_elsewhere_in_the_cluster(
    start: Start, make_job: Make, make_review: Make, cluster: Cluster, named: str, said: str
) -> None:
    before = len(cluster.requests)

    found = start(KUBECONFIG=str(cluster.kubeconfig)).review(make_review(make_job("Job", {CONFIGMAP: named})))

    assert found["auditAnnotations"] == {"action": "warn", "verdict": "unplannable"}
    assert said in " ".join(found["warnings"])
    own = "/api/v1/namespaces/team-nlp/configmaps/"
    assert all(each.url.path.startswith(own) for each in cluster.requests[before:])


@pytest.mark.parametrize(
    "text",
    [
        "model: {hf_config: /etc/passwd}\ntrain: {sequence_length: 8}\ncluster: {gpu: T4-16GB}",
        "model: {hf_config: ./config.json}\ntrain: {sequence_length: 8}\ncluster: {gpu: T4-16GB}",
        "model: {hf_config: http://127.0.0.1:1/config.json}\ntrain: {sequence_length: 8}\ncluster: {gpu: T4-16GB}",
        "trainer: {arguments: /etc/hostname}\nmodel: {decoder: {layers: 1}}\ncluster: {gpu: T4-16GB}",
        "!!python/object/apply:os.system [id]",
        "/etc/passwd",
        "{",
        "",
    ],
)
def test_a_job_cannot_make_the_webhook_read_a_file_or_an_address(
    start: Start, make_job: Make, make_review: Make, text: str
) -> None:
    found = start().review(make_review(make_job("Job", {BUNDLE: text})))

    assert found["allowed"]
    assert found["auditAnnotations"] == {"action": "warn", "verdict": "unplannable"}
    assert "root:" not in " ".join(found["warnings"])


def test_pods_that_ask_for_other_gpus_than_the_spec_are_told_so(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    job = make_job("JobSet", {BUNDLE: spec_text()}, gpus=8, product="NVIDIA-A100-SXM4-40GB")

    found = start().review(make_review(job))

    assert found["warnings"] == [
        "planner: the pods ask for 8 nvidia.com/gpu, and the spec plans 1 GPU",
        "planner: the pods go to NVIDIA-A100-SXM4-40GB (A100-SXM-40GB), and the spec plans H100-SXM-80GB",
        f"planner: the plan is {found['auditAnnotations']['plan-id']}",
    ]


def test_a_dry_run_is_decided_and_not_bound(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    dry, real = (make_job("Job", {BUNDLE: spec_text()}, name=name) for name in ("dry", "real"))

    found = start().review(make_review(dry, dryRun=True))
    start().review(make_review(real))

    assert found["auditAnnotations"]["verdict"] == "fits"
    until(lambda: service.history.jobs.get("kubernetes", real["metadata"]["uid"]))
    assert service.history.jobs.get("kubernetes", dry["metadata"]["uid"]) is None


def test_a_job_without_a_spec_goes_its_way_unless_the_site_insists_on_one(
    start: Start, make_job: Make, make_review: Make
) -> None:
    gpus, none = make_job("PyTorchJob"), make_job("PyTorchJob", gpus=0)
    insists = start("unplanned = refuse")

    assert start().review(make_review(gpus)) == {"allowed": True}
    assert insists.review(make_review(none)) == {"allowed": True}
    refused = insists.review(make_review(gpus))
    assert (refused["allowed"], refused["auditAnnotations"]["verdict"]) == (False, "unplanned")
    for resource in ("amd.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/vgpu-number"):
        other = insists.review(make_review(make_job("Volcano Job", resource=resource)))
        assert (other["allowed"], other["auditAnnotations"]["verdict"]) == (False, "unplanned")


@pytest.mark.parametrize("annotations", [{BUNDLE: "{"}, {BUNDLE: "model: 7"}, {BUNDLE: "a: 1", CONFIGMAP: "specs"}])
def test_a_site_that_insists_on_a_spec_refuses_one_that_cannot_be_used(
    start: Start, make_job: Make, make_review: Make, annotations: dict[str, str]
) -> None:
    """Or whoever annotates a job with anything would get around the site's choice."""
    found = start("unplanned = refuse").review(make_review(make_job("Job", annotations)))

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (False, "unplannable")


def test_a_train_job_whose_gpus_only_its_runtime_says_may_ask_for_some(
    start: Start, make_job: Make, make_review: Make
) -> None:
    left, none = make_job("TrainJob", gpus=0), make_job("TrainJob", resource="nvidia.com/gpu")
    none["spec"]["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"] = "0"
    insists = start("unplanned = refuse")

    refused = insists.review(make_review(left))

    assert (refused["allowed"], refused["auditAnnotations"]["verdict"]) == (False, "unplanned")
    assert "ClusterTrainingRuntime torch-distributed may ask for GPUs" in refused["status"]["message"]
    assert insists.review(make_review(none)) == {"allowed": True}


def test_what_a_runtime_says_is_not_compared_and_that_is_said(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    job = make_job("TrainJob", {BUNDLE: spec_text()})
    del job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["command"]

    found = start().review(make_review(job))

    assert found["warnings"] == [
        "planner: ClusterTrainingRuntime torch-distributed alone says the job's numNodes, command: not compared",
        f"planner: the plan is {found['auditAnnotations']['plan-id']}",
    ]


def test_the_pods_of_a_job_are_not_judged_a_second_time(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    pod = make_job("Pod", {BUNDLE: spec_text("large", TINY)})
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "large", "controller": True}
    webhook = start(REFUSES)

    assert not webhook.review(make_review(pod))["allowed"]
    pod["metadata"]["ownerReferences"] = [owner]
    assert webhook.review(make_review(pod)) == {"allowed": True}


def test_only_what_is_created_is_asked_about(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    job = make_job("Job", {BUNDLE: spec_text("large", TINY)})

    for operation in ("UPDATE", "DELETE", "CONNECT"):
        assert start(REFUSES).review(make_review(job, operation=operation)) == {"allowed": True}


def test_a_plan_that_is_not_ready_in_time_is_answered_by_the_policy(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    service.plan_provider.slow.add("slow")

    found = start("wait_seconds = 1").review(make_review(make_job("Job", {BUNDLE: spec_text("slow")})), "?timeout=30s")

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (True, "pending")


def test_a_service_that_hangs_costs_less_than_the_api_server_waits(
    start: Start, answering: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    answering.says(200, {})
    answering.held.clear()
    review = make_review(make_job("Job", {BUNDLE: spec_text()}))

    found = start(PLANNER_SERVER=answering.url).review(review, "?timeout=3s")

    assert (found["allowed"], found["auditAnnotations"]["verdict"]) == (True, "unreachable")
    (warning,) = found["warnings"]
    seconds = re.search(r"answer within ([\d.]+) s", warning)
    assert seconds is not None
    assert float(seconds[1]) < 3


def test_the_certificate_is_read_anew_when_it_changes(start: Start) -> None:
    webhook = start("tight = admit")
    first = webhook.serial()
    webhook.authority.issue(webhook.certificate, webhook.key)
    second = webhook.serial()
    kept = webhook.key.read_bytes()
    webhook.key.write_text("half a renewal")
    during = webhook.serial()
    webhook.key.write_bytes(kept)

    assert second != first
    assert during == second
    assert webhook.ask("GET", "/livez") == (200, "ok\n")


@pytest.mark.parametrize(
    ("body", "kind", "status", "problem"),
    [
        (b"{", "application/json", 400, "the body is not JSON"),
        (b"[]", "application/json", 400, "the body is not an AdmissionReview"),
        (b"[" * 100_000, "application/json", 400, "the body is not JSON"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}', "application/json", 400, "the body is"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "application/json", 400, "the review has"),
        (b"{}", "text/plain", 415, "the body is of another type"),
        (b" " * (4 * 2**20 + 1), "application/json", 413, "the body is too large"),
    ],
)
def test_what_is_no_review_is_a_problem_and_no_answer(
    start: Start, body: bytes, kind: str, status: int, problem: str
) -> None:
    found = start().ask("POST", "/validate", body, kind)

    assert found[0] == status
    assert isinstance(found[1], dict)
    assert found[1]["problem"].startswith(problem)
    assert (found[1]["status"], found[1]["type"]) == (status, "urn:planner:problem:review")


@pytest.mark.parametrize(
    ("change", "certificate", "said"),
    [
        ({"PLANNER_SERVER": ""}, "tls.crt", "no planner service is set"),
        ({"PLANNER_ADMISSION_EXCEEDS": "maybe"}, "tls.crt", "is not a policy"),
        ({"PLANNER_ADMISSION_POLICY": "/nowhere.ini"}, "tls.crt", "cannot be read"),
        ({}, "absent.crt", "the certificate cannot be used"),
    ],
)
def test_a_webhook_that_is_not_set_up_says_so_and_ends(
    tmp_path: Path,
    change: dict[str, str],
    certificate: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Authority(tmp_path).issue(tmp_path / "tls.crt", tmp_path / "tls.key")
    for name, value in {"PLANNER_SERVER": "http://127.0.0.1:1", **change}.items():
        monkeypatch.setenv(name, value)
    files = ["--certificate", str(tmp_path / certificate), "--key", str(tmp_path / "tls.key")]

    assert cli.main(["webhook", "--port", "0", "--any-client", *files]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [([], "nothing says which clients may ask"), (["--any-client", "--client-ca", "ca.crt"], "both say who may ask")],
)
def test_whose_reviews_are_answered_is_said_or_the_webhook_does_not_start(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["webhook", "--certificate", "tls.crt", "--key", "tls.key", *options]) == 2

    shown = capsys.readouterr().err
    assert (said in shown, "--client-ca FILE.crt, or --any-client" in shown) == (True, True)


def test_a_job_that_does_not_fit_its_mig_slice_is_refused_with_the_slice_that_fits(
    start: Start, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    spec = spec_text("large").replace("micro_batch_size: 16", "micro_batch_size: 112")
    job = make_job("Job", {BUNDLE: spec}, name="slice", resource="nvidia.com/mig-1g.10gb")

    found = start(REFUSES).review(make_review(job))

    assert not found["allowed"]
    reason, change = found["status"]["message"].splitlines()
    assert reason.startswith("planner: refused: large does not fit: rank 0 needs ")
    assert "9.75 GiB available (H100-SXM-80GB:1g.10gb)" in reason
    assert change.startswith("planner: the smallest change that fits: cluster.gpu: H100-SXM-80GB:1g.20gb (then ")


def test_half_of_a_gpu_is_planned_as_half_of_it(
    start: Start, service: Any, make_job: Make, make_review: Make, spec_text: Callable[..., str]
) -> None:
    job = make_job("Job", {BUNDLE: spec_text("half")}, name="half", gpus=0, of_pods={"gpu-fraction": "0.5"})

    found = start().review(make_review(job))

    assert found["auditAnnotations"]["verdict"] == "fits"
    assert "planner: planned for 0.5 of each GPU, as its containers ask" in found["warnings"]
    plan = service.history.plans.get(found["auditAnnotations"]["plan-id"])
    assert plan.rank_classes[0].capacity_bytes == plan.job["cluster"]["gpu"]["total_bytes"] // 2
