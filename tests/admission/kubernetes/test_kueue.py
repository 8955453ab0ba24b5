"""The admission check controller as its own process, between an emulated API server and the real service."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulated_cluster import Cluster, emulated_cluster, kubeconfig, until

from planner import cli
from planner.admission.kubernetes_api import AGENT

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/namespaces/nlp/workloads"
BUNDLE, CONFIGMAP = "planner.dev/bundle", "planner.dev/spec-configmap"
REFUSES = "refuse_uncalibrated = yes"
RESERVED = "2026-01-31T12:00:00Z"
TINY = "{total_bytes: 1.9GiB, arch: sm_90}"
_numbers = itertools.count()

Make = Callable[..., Any]


@contextlib.contextmanager
def cluster_with_kueue(folder: Path) -> Iterator[Cluster]:
    """With Kueue, three flavors and our check, which nobody answers for yet."""
    with emulated_cluster(folder) as found:
        kinds = ("workloads", "admissionchecks", "resourceflavors")
        found.declare(*(f"kueue.x-k8s.io/v1beta2/{kind}" for kind in kinds), "batch/v1/jobs", "v1/configmaps")
        found.declare("kubeflow.org/v2beta1/mpijobs", "kubeflow.org/v1/mpijobs")
        for name, product in (("h100", "NVIDIA-H100-80GB-HBM3"), ("t4", "Tesla-T4"), ("turns", "NVIDIA-A30-SHARED")):
            labels = {"nvidia.com/gpu.product": product}
            flavor = {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}
            found.add(f"{KUEUE}/resourceflavors", flavor)
        admission_check(found, "fits")
        yield found
    assert {str(each.url.path) for each in found.requests if not is_allowed(each)} == set()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests that leave it as it was; their workloads have names of their own."""
    with cluster_with_kueue(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """For a test that ends its watches, stops it, or sets another policy."""
    with cluster_with_kueue(tmp_path) as found:
        yield found


ROLE = next(
    document["rules"]
    for document in yaml.safe_load_all(Path(__file__).parents[3].joinpath("deploy/kubernetes/kueue.yaml").read_text())
    if document["kind"] == "ClusterRole"
)


def is_allowed(request: Any) -> bool:
    """Whether the role of deploy/kubernetes lets the controller ask this; this test itself may do anything."""
    if request.headers.get("User-Agent") != AGENT or request.url.path == "/apis/kueue.x-k8s.io":
        return True  # discovery is every service account's (system:discovery)
    verbs = {"POST": "create", "PATCH": "patch", "GET": "get" if request.name else "list"}
    verb = "watch" if "watch" in request.params else verbs[request.method.value]
    resource = "/".join(part for part in (request.resource.plural, request.subresource) if part)
    return any(
        request.resource.group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
        for rule in ROLE
    )


def admission_check(cluster: Cluster, name: str, controller: str = "planner.dev/fits") -> None:
    metadata = {"name": name, "generation": 1}
    cluster.add(f"{KUEUE}/admissionchecks", {"metadata": metadata, "spec": {"controllerName": controller}})


def workload(
    cluster: Cluster,
    name: str,
    *,
    annotations: dict[str, str] | None = None,
    owner: dict[str, Any] | None = None,
    flavor: str = "h100",
    checks: tuple[str, ...] = ("fits",),
    reserved: bool = True,
) -> str:
    """A workload whose quota is reserved on a flavor; returns its path."""
    container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [container]}}
    document: dict[str, Any] = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name,
            "namespace": "nlp",
            "uid": f"uid-{name}-{next(_numbers)}",
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": {"queueName": "team-queue", "podSets": [{"name": "main", "count": 1, "template": template}]},
        "status": status(flavor, checks, reserved),
    }
    cluster.add(WORKLOADS, document)
    return f"{WORKLOADS}/{name}"


def status(flavor: str, checks: tuple[str, ...], reserved: bool = True, when: str = RESERVED) -> dict[str, Any]:
    return {
        "conditions": [
            {
                "type": "QuotaReserved",
                "status": "True" if reserved else "False",
                "reason": "QuotaReserved" if reserved else "Pending",
                "message": "as Kueue says it",
                "lastTransitionTime": when,
            }
        ],
        "admission": {
            "clusterQueue": "cq",
            "podSetAssignments": [{"name": "main", "count": 1, "flavors": {"nvidia.com/gpu": flavor}}],
        },
        "admissionChecks": [
            {"name": check, "state": "Pending", "message": "", "lastTransitionTime": when} for check in checks
        ],
    }


def state(cluster: Cluster, path: str, check: str = "fits") -> dict[str, Any]:
    found = cluster.get(path)["status"]["admissionChecks"]
    return next(dict(each) for each in found if each["name"] == check)


def answer(cluster: Cluster, path: str, check: str = "fits") -> dict[str, Any]:
    """What the check says when it is not pending any more."""

    def answered() -> dict[str, Any] | None:
        found = state(cluster, path, check)
        return found if found["state"] != "Pending" else None

    return dict(until(answered))


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def probe(self, path: str) -> int:
        """The status; 0 for one that is not a success, or for nobody there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(300) in (0, -signal.SIGKILL)
        assert "Traceback" not in self.log.read_text()


Start = Callable[..., Running]


@contextlib.contextmanager
def controllers(service: Any, cluster: Cluster, folder: Path) -> Iterator[Start]:
    """Starts one, unless it runs; they have to end in order and without having been surprised."""
    running: list[Running] = []

    def begin(policy: str = REFUSES, *, seconds: float = 60) -> Running:
        if running and running[-1].process.poll() is None:
            return running[-1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file, log = folder / f"policy-{port}.ini", folder / f"log-{port}"
        file.write_text(f"[admission]\nwait_seconds = {seconds}\n{policy}\n")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PLANNER", "KUBE"))}
        own = {"KUBECONFIG": str(cluster.kubeconfig), "PLANNER_SERVER": service.url, "PLANNER_TOKEN": service.token}
        command = [sys.executable, "-m", "planner", "kueue", "--policy", str(file), "--health-port", str(port)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1"], stdout=output, stderr=output, env={**clean, **own}
            )
        found = Running(process, port, log)
        running.append(found)
        until(lambda: found.probe("/readyz") == 200 or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return found

    yield begin
    for each in running:
        each.end()


@pytest.fixture(scope="module")
def start(service: Any, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with controllers(service, cluster, tmp_path_factory.mktemp("controllers")) as begin:
        yield begin


@pytest.fixture
def start_own(service: Any, own_cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    with controllers(service, own_cluster, tmp_path) as begin:
        yield begin


def test_it_says_that_somebody_answers_for_the_check_and_leaves_those_of_others_alone(
    start: Start, cluster: Cluster
) -> None:
    admission_check(cluster, "of-others", "kueue.x-k8s.io/multikueue")
    start()

    def conditions() -> Any:
        return cluster.get(f"{KUEUE}/admissionchecks/fits").get("status", {}).get("conditions")

    (condition,) = until(conditions)
    assert (condition["type"], condition["status"], condition["observedGeneration"]) == ("Active", "True", 1)
    assert "status" not in cluster.get(f"{KUEUE}/admissionchecks/of-others")

    cluster.merge(f"{KUEUE}/admissionchecks/fits", {"metadata": {"generation": 2}})
    until(lambda: conditions()[0]["observedGeneration"] == 2)
    applied = [each for each in cluster.requests if each.method == "PATCH" and "fieldManager" in each.params]
    assert {each.params["fieldManager"] for each in applied} == {"planner"}


def test_a_job_that_fits_on_its_flavor_is_ready_and_its_pods_hear_of_the_plan(
    start: Start, cluster: Cluster, service: Any, spec_text: Make
) -> None:
    start()
    path = workload(cluster, "small", annotations={BUNDLE: spec_text()})

    found = answer(cluster, path)

    job_id = cluster.get(path)["metadata"]["uid"]
    bound = until(lambda: service.history.jobs.get("kubernetes", job_id))
    assert found["state"] == "Ready"
    assert found["message"].startswith("planner: small fits: rank 0 needs ")
    assert found["message"].endswith("planner: planned on H100-SXM-80GB, the GPU of flavor h100")
    assert found["podSetUpdates"] == [
        {"name": "main", "annotations": {"planner.dev/plan-id": bound.plan_id, "planner.dev/job-id": job_id}}
    ]
    assert bound.queue == "team-queue"


def test_the_flavors_gpu_decides_and_not_the_specs(start: Start, cluster: Cluster, spec_text: Make) -> None:
    """The spec says a GPU that is far too small; the quota is on one that is not."""
    start()

    found = answer(cluster, workload(cluster, "moved", annotations={BUNDLE: spec_text("moved", TINY)}))

    assert found["state"] == "Ready"
    assert "79.10 GiB available (H100-SXM-80GB)" in found["message"]


def test_a_job_that_does_not_fit_is_rejected_and_its_owner_hears_why(
    start: Start, cluster: Cluster, service: Any, spec_text: Make
) -> None:
    start()
    large = spec_text("large").replace("micro_batch_size: 16", "micro_batch_size: 150")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "large", "uid": "uid-large", "controller": True}
    path = workload(cluster, "large", annotations={BUNDLE: large}, owner=owner, flavor="t4")

    found = answer(cluster, path)

    reason, *more = found["message"].splitlines()
    assert (found["state"], "podSetUpdates" in found) == ("Rejected", False)
    assert reason.startswith("planner: refused: large does not fit: rank 0 needs ")
    assert "14.56 GiB available (T4-16GB)" in reason
    assert any(line.startswith("planner: the smallest change that fits: train.") for line in more)
    event = until(lambda: cluster.get("/api/v1/events").get("items"))[0]
    about = {name: event["involvedObject"][name] for name in ("kind", "name", "uid")}
    assert about == {"kind": "Job", "name": "large", "uid": "uid-large"}
    assert (event["reason"], event["message"]) == ("PlannerRefuses", found["message"][:1024])
    assert service.history.jobs.get("kubernetes", "uid-large") is None


@pytest.mark.parametrize(
    ("api_version", "kind"), [("batch/v1", "Job"), ("kubeflow.org/v2beta1", "MPIJob"), ("kubeflow.org/v1", "MPIJob")]
)
def test_the_spec_of_the_job_itself_is_found_by_its_owner(
    start: Start, cluster: Cluster, service: Any, spec_text: Make, api_version: str, kind: str
) -> None:
    name = f"{kind.lower()}-{api_version.rpartition('/')[2]}"
    owner = a_job(cluster, name, {CONFIGMAP: name}, api_version, kind)
    text = {"job.yaml": spec_text("named")}
    cluster.add("/api/v1/namespaces/nlp/configmaps", {"metadata": {"name": name, "namespace": "nlp"}, "data": text})
    start()

    found = answer(cluster, workload(cluster, name, owner=owner))

    assert found["message"].startswith("planner: named fits")
    assert found["podSetUpdates"][0]["annotations"]["planner.dev/job-id"] == f"uid-{name}"
    until(lambda: service.history.jobs.get("kubernetes", f"uid-{name}"))


def a_job(
    cluster: Cluster, name: str, annotations: dict[str, str], api_version: str = "batch/v1", kind: str = "Job"
) -> dict[str, Any]:
    """A job, and how its workload refers to it."""
    metadata = {"name": name, "namespace": "nlp", "uid": f"uid-{name}", "annotations": annotations}
    cluster.add(f"/apis/{api_version}/namespaces/nlp/{kind.lower()}s", {"kind": kind, "metadata": metadata})
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


@pytest.mark.parametrize("says", [{"uid": "of-another-job"}, {"kind": "MPIJob"}, {"apiVersion": "v2/jobs"}])
def test_a_workload_that_claims_to_be_another_ones_job_is_bound_under_its_own_name(
    start: Start, cluster: Cluster, service: Any, spec_text: Make, says: dict[str, str]
) -> None:
    (claim,) = says
    owner = {**a_job(cluster, f"victim-{claim.lower()}", {BUNDLE: spec_text("theirs")}), **says}
    start()
    path = workload(cluster, f"forged-{claim.lower()}", owner=owner, annotations={BUNDLE: spec_text("mine")})

    found = answer(cluster, path)

    own = cluster.get(path)["metadata"]["uid"]
    assert found["message"].startswith("planner: mine fits")
    assert found["podSetUpdates"][0]["annotations"]["planner.dev/job-id"] == own
    until(lambda: service.history.jobs.get("kubernetes", own))
    assert service.history.jobs.get("kubernetes", owner["uid"]) is None


def test_what_the_controller_may_not_read_is_as_if_it_were_not_there(
    start: Start, cluster: Cluster, spec_text: Make
) -> None:
    owner = a_job(cluster, "hidden", {BUNDLE: spec_text("theirs")})
    cluster.fails_once(lambda request: request.resource.plural in ("jobs", "resourceflavors"), 403)
    running = start()

    found = answer(cluster, workload(cluster, "hidden", owner=owner, annotations={BUNDLE: spec_text("mine")}))

    assert (found["state"], found["message"][:19]) == ("Ready", "planner: mine fits:")
    assert "403" in running.log.read_text()


def test_a_workload_without_a_spec_or_with_one_of_no_use_is_the_policys(start_own: Start, own_cluster: Cluster) -> None:
    start_own("unplanned = refuse\nunplannable = admit")

    without = answer(own_cluster, workload(own_cluster, "without-a-spec"))
    useless = answer(own_cluster, workload(own_cluster, "of-no-use", annotations={BUNDLE: "model: 7"}))

    assert (without["state"], useless["state"]) == ("Rejected", "Ready")
    assert without["message"].startswith("planner: refused: the job carries no spec")
    assert useless["message"].startswith("planner: warning: the job's spec cannot be used")


def test_a_plan_that_takes_too_long_is_the_policys(
    start_own: Start, own_cluster: Cluster, service: Any, spec_text: Make
) -> None:
    service.plan_provider.slow.add("slow")
    start_own("pending = hold", seconds=1)

    found = answer(own_cluster, workload(own_cluster, "slow", annotations={BUNDLE: spec_text("slow")}))

    assert (found["state"], found["requeueAfterSeconds"]) == ("Retry", 30)
    assert "the plan is not ready after " in found["message"]


def test_plans_that_are_not_ready_hold_nobody_else_up(
    start_own: Start, own_cluster: Cluster, service: Any, spec_text: Make
) -> None:
    service.plan_provider.slow.add("stuck")
    start_own("pending = hold")
    stuck = [workload(own_cluster, f"stuck-{each}", annotations={BUNDLE: spec_text("stuck")}) for each in range(20)]

    found = answer(own_cluster, workload(own_cluster, "after", annotations={BUNDLE: spec_text()}))

    assert found["state"] == "Ready"
    assert {state(own_cluster, path)["state"] for path in stuck} == {"Pending"}


def test_only_a_workload_with_reserved_quota_is_answered(start: Start, cluster: Cluster, spec_text: Make) -> None:
    start()
    early = workload(cluster, "early", annotations={BUNDLE: spec_text()}, reserved=False)
    others = workload(cluster, "others", annotations={BUNDLE: spec_text()}, checks=("not-ours",))

    answer(cluster, workload(cluster, "later", annotations={BUNDLE: spec_text()}))
    assert state(cluster, early)["state"] == "Pending"
    cluster.merge(early, {"status": status("h100", ("fits",))})

    assert answer(cluster, early)["state"] == "Ready"
    assert state(cluster, others, "not-ours")["state"] == "Pending"


def test_an_answer_is_of_one_state_and_a_workload_that_changed_meanwhile_is_looked_at_anew(
    start: Start, cluster: Cluster, spec_text: Make
) -> None:
    """Kueue moves the workload to a flavor with a smaller GPU just before the answer for the first one arrives."""
    large = spec_text("large").replace("micro_batch_size: 16", "micro_batch_size: 150")
    key = ("kueue.x-k8s.io/v1beta2/workloads", "nlp", "moving")
    cluster.meanwhile(
        lambda request: request.subresource == "status" and request.name == "moving",
        lambda: cluster.change(key, {"status": status("t4", ("fits",), when="2026-01-31T12:00:05Z")}),
    )
    start()

    found = answer(cluster, workload(cluster, "moving", annotations={BUNDLE: large}))

    assert (found["state"], "T4-16GB" in found["message"]) == ("Rejected", True)
    patches = [each for each in cluster.requests if each.subresource == "status" and each.name == "moving"]
    assert len(patches) == 2


def test_an_api_server_that_fails_once_is_asked_again(start_own: Start, own_cluster: Cluster, spec_text: Make) -> None:
    own_cluster.fails_once(lambda request: request.subresource == "status" and request.name == "fits", 500)
    start_own()

    assert answer(own_cluster, workload(own_cluster, "small", annotations={BUNDLE: spec_text()}))["state"] == "Ready"
    assert until(lambda: own_cluster.get(f"{KUEUE}/admissionchecks/fits").get("status"))


@pytest.mark.parametrize("status_of_end", [0, 410, 500], ids=["ended", "expired", "failed"])
def test_a_watch_that_ended_goes_on_and_one_that_is_too_old_begins_with_a_new_list(
    start_own: Start, own_cluster: Cluster, spec_text: Make, status_of_end: int
) -> None:
    running = start_own()
    path = workload(own_cluster, "early", annotations={BUNDLE: spec_text()}, reserved=False)

    def watches() -> int:
        return len([each for each in own_cluster.requests if each.params.get("watch")])

    until(lambda: watches() == 2)
    # Nobody is told of this: it is found in a new list only.
    own_cluster.change(("kueue.x-k8s.io/v1beta2/workloads", "nlp", "early"), {"status": status("h100", ("fits",))})
    own_cluster.forget_history()
    own_cluster.end_watches(status_of_end)

    assert answer(own_cluster, path)["state"] == "Ready"
    assert until(lambda: running.probe("/readyz") == 200)
    complaints = running.log.read_text().count("WARNING")
    assert complaints == (2 if status_of_end == 500 else 0)  # that a version expired is nothing to complain about


def test_a_watch_that_ended_in_time_goes_on_from_where_it_was(
    start_own: Start, own_cluster: Cluster, spec_text: Make
) -> None:
    start_own()
    for name in ("first", "second"):
        assert answer(own_cluster, workload(own_cluster, name, annotations={BUNDLE: spec_text()}))["state"] == "Ready"
        own_cluster.end_watches()
    asked = [each.params for each in own_cluster.requests if each.url.path == f"{KUEUE}/workloads"]

    assert len([each for each in asked if "watch" not in each]) == 1
    assert len([each for each in asked if "watch" in each]) >= 2


def test_what_happened_while_the_api_server_was_away_is_answered_when_it_is_back(
    start_own: Start, own_cluster: Cluster, spec_text: Make
) -> None:
    running = start_own()
    path = workload(own_cluster, "early", annotations={BUNDLE: spec_text()}, reserved=False)
    own_cluster.stop()
    until(lambda: running.probe("/readyz") == 0)
    assert running.probe("/livez") == 200
    own_cluster.change(("kueue.x-k8s.io/v1beta2/workloads", "nlp", "early"), {"status": status("h100", ("fits",))})
    own_cluster.start()

    assert answer(own_cluster, path)["state"] == "Ready"


def test_a_controller_that_was_killed_goes_on_where_it_was_and_answers_nothing_twice(
    start_own: Start, own_cluster: Cluster, spec_text: Make
) -> None:
    first = start_own()
    done = workload(own_cluster, "done", annotations={BUNDLE: spec_text()})
    before = answer(own_cluster, done)
    first.process.kill()
    first.process.wait(300)
    fresh = workload(own_cluster, "fresh", annotations={BUNDLE: spec_text()})

    start_own()

    assert answer(own_cluster, fresh)["state"] == "Ready"
    assert state(own_cluster, done) == before
    assert len([each for each in own_cluster.requests if each.subresource == "status" and each.name == "done"]) == 1


def test_a_check_that_is_made_later_is_answered_for_workloads_that_wait_already(
    start: Start, cluster: Cluster, spec_text: Make
) -> None:
    start()
    path = workload(cluster, "twice", annotations={BUNDLE: spec_text()}, checks=("fits", "fits-too"))
    assert answer(cluster, path)["state"] == "Ready"
    assert state(cluster, path, "fits-too")["state"] == "Pending"

    admission_check(cluster, "fits-too")

    assert answer(cluster, path, "fits-too")["state"] == "Ready"
    assert state(cluster, path)["state"] == "Ready"


def test_an_older_kueue_is_spoken_to_in_its_own_version(service: Any, tmp_path: Path, spec_text: Make) -> None:
    older = "/apis/kueue.x-k8s.io/v1beta1"
    with emulated_cluster(tmp_path) as cluster, controllers(service, cluster, tmp_path) as start:
        cluster.declare("kueue.x-k8s.io/v1beta1/workloads", "kueue.x-k8s.io/v1beta1/admissionchecks")
        check = {"metadata": {"name": "fits"}, "spec": {"controllerName": "planner.dev/fits"}}
        cluster.add(f"{older}/admissionchecks", check)
        start()
        template = {"metadata": {"annotations": {BUNDLE: spec_text()}}, "spec": {"containers": []}}
        document = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "metadata": {"name": "old", "namespace": "nlp", "uid": "uid-old"},
            "spec": {"podSets": [{"name": "main", "count": 1, "template": template}]},
            "status": status("h100", ("fits",)),
        }
        cluster.add(f"{older}/namespaces/nlp/workloads", document)

        assert answer(cluster, f"{older}/namespaces/nlp/workloads/old")["state"] == "Ready"
        until(lambda: service.history.jobs.get("kubernetes", "uid-old"))


def test_it_waits_for_a_kueue_that_is_not_installed_yet(start_own: Start, own_cluster: Cluster) -> None:
    for _ in range(2):
        own_cluster.fails_once(lambda request: request.url.path == "/apis/kueue.x-k8s.io", 404)
    running = start_own()

    assert "Kueue" in running.log.read_text() or "404" in running.log.read_text()
    assert (running.probe("/livez"), running.probe("/readyz"), running.probe("/else")) == (200, 200, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"PLANNER_SERVER": ""}, "no planner service is set"),
        ({"KUBECONFIG": "/nowhere"}, "there is no way to the cluster"),
        ({"KUBECONFIG": ""}, "there is no way to the cluster"),
    ],
)
def test_a_controller_that_is_not_set_up_says_so_and_ends(
    change: dict[str, str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = {"PLANNER_SERVER": "http://127.0.0.1:1", "KUBECONFIG": str(tmp_path / "config")}
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1")))
    for name, value in {**base, **change}.items():
        monkeypatch.setenv(name, value)

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert cli.main(["kueue", "--health-port", "0"]) == 2
    assert (
        signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked
    )  # else every later child of this process inherits them
    assert said in capsys.readouterr().err
