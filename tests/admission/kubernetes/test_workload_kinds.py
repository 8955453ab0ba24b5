"""Every kind of job on Kubernetes: its pods, GPUs, ranks and command are where its published schema has them.

Run this file to write the table of docs/admission.md anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_jobs import KINDS, pod_template

from planner.admission.workload_kinds import KINDS as TABLE
from planner.admission.workload_kinds import Kind, PodsAt, is_part_of_job, kind_of, read_job_pods

SCHEMAS = yaml.safe_load(Path(__file__).with_name("workload_schemas.yaml").read_text())
PAGE = Path(__file__).parents[3] / "docs/admission.md"
BEGIN, END = "<!-- kinds: written by tests/admission/kubernetes/test_workload_kinds.py -->\n", "<!-- end of kinds -->\n"
OF_KUBERNETES = ("", "batch")
Document = dict[str, Any]


def read(job: Document) -> tuple[int, int, tuple[str, ...]]:
    """GPUs, world size and command."""
    found = read_job_pods(job)
    return found.gpus, found.ranks, found.command


def job(kind: str, spec: Document, api_version: str = "") -> Document:
    """Of a kind by its name in the builders, with this spec."""
    made = KINDS[kind](pod_template())
    return {"apiVersion": api_version or made["apiVersion"], "kind": made["kind"], "spec": spec}


TORCHRUN = ("torchrun", "train.py")
EIGHT, NONE = pod_template(gpus=8), pod_template(gpus=0, command=("sleep", "1"))
AMD = pod_template(gpus=8, resource="amd.com/gpu")
MPIRUN = ("mpirun", "-np", "16", "python", "train.py")
SHELL = ("sh", "-c", "/usr/sbin/sshd; mpiexec -np 16 python train.py")


def counted(template: Document, **counts: Any) -> Document:
    return {"template": template, **counts}


def group(template: Document, **counts: int) -> Document:
    """Of workers of Ray."""
    return {"groupName": "gpus", "minReplicas": 0, "maxReplicas": 8, "template": template, **counts}


CASES: dict[str, tuple[Document, tuple[int, int, tuple[str, ...]]]] = {
    "a pod": (KINDS["Pod"](AMD), (8, 8, TORCHRUN)),
    "a job of one pod": (job("Job", counted(EIGHT)), (8, 8, TORCHRUN)),
    "an indexed job": (job("Job", counted(EIGHT, parallelism=4, completions=4)), (32, 32, TORCHRUN)),
    "a job that runs less at once than it could": (
        job("Job", counted(EIGHT, parallelism=8, completions=2)),
        (16, 16, TORCHRUN),
    ),
    "a set of jobs": (
        job(
            "JobSet",
            {
                "replicatedJobs": [
                    {"name": "driver", "template": {"spec": counted(NONE)}},
                    {"name": "workers", "replicas": 2, "template": {"spec": counted(EIGHT, parallelism=4)}},
                ]
            },
        ),
        (64, 64, TORCHRUN),
    ),
    "a TrainJob": (
        job(
            "TrainJob",
            {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {
                    "numNodes": 2,
                    "numProcPerNode": 4,
                    "args": ["train.py"],
                    "command": ["torchrun"],
                    "resourcesPerNode": {"requests": {"amd.com/gpu": "4"}},
                },
            },
        ),
        (8, 8, ("env", "PET_NNODES=2", "PET_NPROC_PER_NODE=4", *TORCHRUN)),
    ),
    "a master and its workers": (
        job("PyTorchJob", {"pytorchReplicaSpecs": {"Master": counted(EIGHT), "Worker": counted(EIGHT, replicas=3)}}),
        (32, 32, ("env", "PET_NNODES=4", "PET_NPROC_PER_NODE=8", *TORCHRUN)),
    ),
    "workers with fewer processes than GPUs": (
        job("PyTorchJob", {"nprocPerNode": "4", "pytorchReplicaSpecs": {"Worker": counted(EIGHT, replicas=2)}}),
        (16, 8, ("env", "PET_NNODES=2", "PET_NPROC_PER_NODE=4", *TORCHRUN)),
    ),
    "workers with a process for each GPU that there is": (
        job("PyTorchJob", {"nprocPerNode": "auto", "pytorchReplicaSpecs": {"Worker": counted(EIGHT)}}),
        (8, 8, ("env", "PET_NNODES=1", "PET_NPROC_PER_NODE=8", *TORCHRUN)),
    ),
    "an MPIJob": (
        job(
            "MPIJob",
            {
                "slotsPerWorker": 8,
                "mpiReplicaSpecs": {
                    "Launcher": counted(pod_template(gpus=0, command=MPIRUN)),
                    "Worker": counted(EIGHT, replicas=2),
                },
            },
        ),
        (16, 16, MPIRUN),
    ),
    "an MPIJob that says no slots has one for each worker": (
        job(
            "MPIJob",
            {"mpiReplicaSpecs": {"Launcher": counted(NONE), "Worker": counted(EIGHT, replicas=2)}},
            "kubeflow.org/v1",
        ),
        (16, 2, ("sleep", "1")),
    ),
    "a Ray job with hosts in groups": (
        job(
            "RayJob",
            {
                "entrypoint": "python 'a file.py' --epochs 3",
                "rayClusterSpec": {
                    "headGroupSpec": {"template": NONE},
                    "workerGroupSpecs": [
                        group(pod_template(gpus=4), replicas=2, numOfHosts=2),
                        group(EIGHT, minReplicas=1),
                        group(EIGHT, replicas=0),
                    ],
                },
            },
        ),
        (24, 24, ("python", "a file.py", "--epochs", "3")),
    ),
    "a Ray job on a cluster that is there already": (
        job("RayJob", {"entrypoint": "python train.py", "clusterSelector": {"ray.io/cluster": "mine"}}),
        (0, 0, ("python", "train.py")),
    ),
    "a Ray job whose entrypoint is not a command": (job("RayJob", {"entrypoint": "python 'train.py"}), (0, 0, ())),
    "a Ray cluster": (
        job(
            "RayCluster",
            {"headGroupSpec": {"template": EIGHT}, "workerGroupSpecs": [group(EIGHT, replicas=9, maxReplicas=3)]},
        ),
        (32, 32, TORCHRUN),
    ),
    "a Volcano job whose master and workers have GPUs": (
        job("Volcano Job", {"tasks": [counted(EIGHT, replicas=1), counted(EIGHT, replicas=3), counted(EIGHT)]}),
        (32, 32, TORCHRUN),
    ),
    "a Volcano job that calls mpirun": (
        job(
            "Volcano Job",
            {"tasks": [counted(EIGHT, replicas=2), counted(pod_template(gpus=0, command=SHELL), replicas=1)]},
        ),
        (16, 16, SHELL),
    ),
    "one group of a leader and its workers": (
        job(
            "LeaderWorkerSet",
            {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": NONE, "workerTemplate": EIGHT}},
        ),
        (24, 24, TORCHRUN),
    ),
    "one group whose leader is as its workers": (
        job("LeaderWorkerSet", {"leaderWorkerTemplate": {"size": 4, "workerTemplate": EIGHT}}),
        (32, 32, TORCHRUN),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gpus_ranks_and_command_are_read_as_the_kind_makes_them(name: str) -> None:
    given, expected = CASES[name]

    assert read(given) == expected
    check(given)


def test_every_kind_of_the_table_is_among_the_jobs() -> None:
    cases = {kind_of(given["apiVersion"], given["kind"]) for given, _ in CASES.values()}
    jobs = {kind_of(made["apiVersion"], made["kind"]) for make in KINDS.values() for made in [make(EIGHT)]}

    assert cases == jobs == set(TABLE.values())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("template", [EIGHT, AMD, pod_template(gpus=1, resource="nvidia.com/mig-1g.10gb")])
def test_a_job_of_one_pod_asks_for_what_its_pod_asks_for(name: str, template: Document) -> None:
    given = KINDS[name](template)
    (limit,) = template["spec"]["containers"][0]["resources"]["limits"].items()

    found = read_job_pods(given)

    check(given)
    assert [(pods.count, request.resource, str(request.count)) for pods in found.pods for request in pods.requests] == [
        (1, *limit)
    ]


def check(given: Document) -> None:
    """The object is as its API takes it."""
    if given["apiVersion"].rpartition("/")[0] in OF_KUBERNETES:
        kubernetes_validate.validate({**given, "metadata": {"name": "x"}}, "1.37", strict=True)
    else:
        jsonschema.validate(given, SCHEMAS[f"{given['apiVersion']} {given['kind']}"])


def paths(kind: Kind) -> Iterator[tuple[str, str]]:
    """What is read, with its type."""
    for place in kind.pods:
        yield place.path, "object"
        for count in place.counts:
            yield count.path, "integer"
            yield from ((path, "integer") for path in (count.at_least, count.at_most) if path)
            yield from ((path, "object") for path in (count.less_one_with,) if path)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_path_is_one_of_the_published_schema_with_its_type(name: str) -> None:
    api_version, _, kind_name = name.partition(" ")
    kind = kind_of(api_version, kind_name)

    assert kind is not None
    assert api_version.rpartition("/")[2] in kind.versions
    for path, type_ in paths(kind):
        assert at(SCHEMAS[name], path)["type"] == type_, path
    for path in (*kind.processes, kind.launcher, kind.runtime):
        assert not path or at(SCHEMAS[name], path), path


def at(schema: Document, path: str) -> Document:
    for step in path.split("."):
        schema = schema.get("properties", {}).get(step.removesuffix("[]")) or schema["additionalProperties"]
        if step.endswith("[]"):
            schema = schema["items"]
    return schema


def test_every_kind_that_is_not_of_kubernetes_itself_has_its_schema() -> None:
    versions = {
        f"{kind.group}/{version} {kind.kind}"
        for kind in TABLE.values()
        if kind.group not in OF_KUBERNETES
        for version in kind.versions
    }

    assert versions == SCHEMAS.keys()


def test_what_a_train_job_leaves_to_its_runtime_is_named() -> None:
    reference = {"kind": "TrainingRuntime", "name": "mine"}
    nothing = read_job_pods(job("TrainJob", {"runtimeRef": reference}))
    some = read_job_pods(
        job(
            "TrainJob",
            {"runtimeRef": reference, "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"cpu": 4}}}},
        )
    )
    none = read_job_pods(
        job("TrainJob", {"runtimeRef": reference, "trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": "0"}}}})
    )

    assert (nothing.runtime, nothing.unsaid) == ("TrainingRuntime mine", ("numNodes", "GPUs", "command"))
    assert (some.gpus, some.unsaid, some.may_ask_by_runtime) == (0, ("GPUs", "command"), True)
    assert (none.gpus, none.unsaid, none.may_ask_by_runtime) == (0, ("numNodes", "command"), False)


def owned_by(api_version: Any, kind: Any, labels: Any = None, *, controller: bool = True) -> Document:
    owner = {"apiVersion": api_version, "kind": kind, "name": "x", "controller": controller}
    return {"ownerReferences": [owner], "labels": labels or {}}


@pytest.mark.parametrize("kind", TABLE.values(), ids=lambda kind: f"{kind.group} {kind.kind}")
def test_what_the_controller_of_a_job_makes_is_a_part_of_it(kind: Kind) -> None:
    version = "/".join(filter(None, (kind.group, kind.versions[0])))

    assert is_part_of_job(owned_by(version, kind.kind))
    assert not is_part_of_job(owned_by(version, kind.kind, controller=False))
    assert not is_part_of_job(owned_by(f"example.com/{kind.versions[0]}", kind.kind))


def test_the_pods_of_a_leader_worker_set_belong_to_stateful_sets() -> None:
    label = {"leaderworkerset.sigs.k8s.io/name": "x"}

    assert is_part_of_job(owned_by("apps/v1", "StatefulSet", label))
    assert not is_part_of_job(owned_by("apps/v1", "StatefulSet"))
    assert not is_part_of_job(owned_by("apps/v1", "ReplicaSet", label))


@pytest.mark.parametrize("kind", ["ReplicaSet", "CronJob", "RayService", 3, None, [], {}])
def test_the_pods_of_what_is_no_job_are_a_part_of_none(kind: Any) -> None:
    assert not is_part_of_job(owned_by("batch/v1", kind))


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, [None], [3], {"a": 3}, -1, "1e9", True])
@pytest.mark.parametrize("name", KINDS)
def test_a_shape_that_the_api_would_not_have_asks_for_nothing(name: str, odd: Any) -> None:
    made = KINDS[name](EIGHT)
    assert read_job_pods({**made, "spec": odd}).gpus == 0
    for key in made["spec"]:
        read_job_pods({**made, "spec": {**made["spec"], key: odd}})
    for version, kind in ((odd, made["kind"]), (made["apiVersion"], odd)):
        assert read_job_pods({**made, "apiVersion": version, "kind": kind}).pods == ()


def test_a_number_of_pods_is_bounded() -> None:
    spec = {"replicatedJobs": [{"replicas": 2**24, "template": {"spec": counted(EIGHT, parallelism=2**24)}}]}

    assert read_job_pods(job("JobSet", spec)).pods[0].count == 2**24


def table() -> str:
    lines = ["| kind | pods × how many | ranks of each pod with GPUs | command |", "|---|---|---|---|"]
    for kind in TABLE.values():
        names = [f"`{'/'.join(filter(None, (kind.group, version)))}`" for version in kind.versions]
        ranks = [*map(shown, kind.processes), str(kind.processes_otherwise or "one for each GPU")]
        pods = [*map(pods_cell, kind.pods), kind.note]
        cells = [f"{kind.kind}, {', '.join(names)}", "; ".join(filter(None, pods)), ", else ".join(ranks)]
        lines.append(f"| {' | '.join([*cells, shown(kind.launcher) if kind.launcher else 'see below'])} |")
    return "\n".join(lines) + "\n"


def shown(path: str) -> str:
    return f"`{path.removeprefix('spec.')}`" if path else "itself"


def pods_cell(place: PodsAt) -> str:
    factors = [shown(place.path)]
    for count in place.counts:
        named = [
            (" (at least `{}`)", count.at_least),
            (" (at most `{}`)", count.at_most),
            (" (less one with `{}`)", count.less_one_with),
            (" (else 0)", "0" if count.otherwise == 0 else ""),
        ]
        further = (form.format(path.rpartition(".")[2]) for form, path in named if path)
        factors.append(f"`{count.path.rpartition('.')[2]}`{''.join(further)}")
    return " × ".join(factors)


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    page = PAGE.read_text()

    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)] == table()


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + table() + page[page.index(END) :])
