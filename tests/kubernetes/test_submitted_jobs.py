"""What a job asks for, by its object: pods and GPUs of each kind, and annotations that carry a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.admission.kubernetes import (
    BUNDLE,
    CONFIGMAP,
    ConfigMapKey,
    Pods,
    differences,
    find_spec,
    read,
    read_submission,
)
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.loading import job_on_gpu

H100 = "NVIDIA-H100-80GB-HBM3"


def template(gpus: int, product: str = "") -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    selector = {"nodeSelector": {"nvidia.com/gpu.product": product}} if product else {}
    return {"spec": {"containers": [{"name": "main", "resources": resources}, {"name": "logs"}], **selector}}


def job(parallelism: int | None, completions: int | None, gpus: int) -> dict[str, Any]:
    counts = {"parallelism": parallelism, "completions": completions, "completionMode": "Indexed"}
    return {"template": template(gpus), **{name: count for name, count in counts.items() if count is not None}}


SPECS: dict[str, tuple[str, dict[str, Any], int]] = {
    "a job of one pod": ("Job", job(None, None, 8), 8),
    "an indexed job": ("Job", job(4, 4, 8), 32),
    "a job that runs less at once than it could": ("Job", job(8, 2, 1), 2),
    "a set of jobs": (
        "JobSet",
        {
            "replicatedJobs": [
                {"name": "driver", "template": {"spec": job(1, 1, 0)}},
                {"name": "workers", "replicas": 2, "template": {"spec": job(4, 4, 8)}},
            ]
        },
        64,
    ),
    "a master and its workers": (
        "PyTorchJob",
        {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": template(8)},
                "Worker": {"replicas": 3, "template": template(8)},
            }
        },
        32,
    ),
    "a Ray cluster with hosts in groups": (
        "RayJob",
        {
            "rayClusterSpec": {
                "headGroupSpec": {"template": template(0)},
                "workerGroupSpecs": [
                    {"groupName": "a", "replicas": 2, "numOfHosts": 2, "template": template(4)},
                    {"groupName": "b", "template": template(8)},
                ],
            }
        },
        24,
    ),
    "a Ray job on a cluster that is there already": ("RayJob", {"clusterSelector": {"ray.io/cluster": "mine"}}, 0),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_gpus_of_all_pods_are_counted_as_the_kind_makes_them(name: str) -> None:
    kind, spec, gpus = SPECS[name]

    assert read_submission({"kind": kind, "metadata": {"name": "x"}, "spec": spec}).gpus == gpus


def test_gpus_are_a_quantity_or_a_number_in_limits_or_requests() -> None:
    for resources in ({"limits": {"nvidia.com/gpu": "4"}}, {"requests": {"nvidia.com/gpu": 4}}):
        container = {"name": "main", "resources": resources}
        job = {"kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}

        assert read_submission(job).pods == (Pods(count=1, gpus=4, product=""),)


def container_of(name: str, count: Any = 1) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": {name: count}}}]}


ASKING = {
    "a pod": {"kind": "Pod", "spec": container_of("nvidia.com/gpu")},
    "a part of a GPU": {"kind": "Job", "spec": {"template": {"spec": container_of("nvidia.com/mig-1g.10gb")}}},
    "another vendor's": {"kind": "Job", "spec": {"template": {"spec": container_of("amd.com/gpu")}}},
    "a shared one": {"kind": "Job", "spec": {"template": {"spec": container_of("nvidia.com/gpu.shared", "2")}}},
    "Intel's": {"kind": "Job", "spec": {"template": {"spec": container_of("gpu.intel.com/i915")}}},
    "a TrainJob": {
        "kind": "TrainJob",
        "spec": {"trainer": {"resourcesPerNode": {"requests": {"nvidia.com/gpu": "8"}}}},
    },
    "an MPIJob": {
        "kind": "MPIJob",
        "spec": {"mpiReplicaSpecs": {"Worker": {"template": {"spec": container_of("nvidia.com/gpu", 8)}}}},
    },
}


@pytest.mark.parametrize("name", ASKING)
def test_whatever_asks_for_any_gpu_is_known_to_ask(name: str) -> None:
    assert read_submission(ASKING[name]).asks_for_gpus


def controlled_by(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": "x", "controller": True}]}


def test_none_no_gpu_and_the_parts_of_a_job_ask_for_nothing() -> None:
    for job in (
        {"kind": "Pod", "spec": container_of("nvidia.com/gpu", "0")},
        {"kind": "Pod", "spec": container_of("example.com/gpus-of-the-mind", 0)},
        {"kind": "Pod", "spec": container_of("cpu", 4)},
        {"kind": "Pod", "metadata": controlled_by("Job"), "spec": container_of("nvidia.com/gpu", 8)},
        {"kind": "Job", "metadata": controlled_by("JobSet"), "spec": container_of("nvidia.com/gpu", 8)},
    ):
        assert not read_submission(job).asks_for_gpus


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Job of another kind", 3, None, [], {}])
def test_the_pods_of_what_is_no_job_ask_by_themselves(kind: Any) -> None:
    pod = {"kind": "Pod", "metadata": controlled_by(kind), "spec": container_of("nvidia.com/gpu", 8)}

    assert read_submission(pod).asks_for_gpus


@pytest.mark.parametrize("odd", [None, 3, "x", [], {}, [None], [3], {"a": 3}, -1, "1e9", True])
def test_a_shape_that_the_api_would_not_have_asks_for_nothing(odd: Any) -> None:
    for job in (
        {"kind": "Job", "spec": odd, "metadata": odd},
        {"kind": "Job", "spec": {"template": odd, "parallelism": odd}},
        {"kind": "Job", "spec": {"template": {"spec": {"containers": odd, "nodeSelector": odd}}}},
        {"kind": "JobSet", "spec": {"replicatedJobs": odd}},
        {"kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": odd}},
        {"kind": "RayJob", "spec": {"rayClusterSpec": odd}},
        {"kind": "RayJob", "spec": {"rayClusterSpec": {"headGroupSpec": odd, "workerGroupSpecs": odd}}},
        {"kind": odd, "spec": {}},
    ):
        assert read_submission(job).gpus == 0


def test_a_job_is_known_by_its_uid_and_without_one_by_its_name() -> None:
    metadata = {"name": "sft", "namespace": "nlp"}

    assert read_submission({"metadata": {**metadata, "uid": "0815"}}).job_id == "0815"
    assert read_submission({"metadata": metadata}).job_id == "nlp.sft"


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, None),
        ({BUNDLE: "text"}, "text"),
        ({CONFIGMAP: "specs"}, ConfigMapKey(name="specs", key="job.yaml")),
        ({CONFIGMAP: "my.specs-1/llama.yaml"}, ConfigMapKey(name="my.specs-1", key="llama.yaml")),
    ],
)
def test_annotations_carry_a_spec_or_say_where_it_stands(annotations: dict[str, str], found: object) -> None:
    assert find_spec(annotations) == found


@pytest.mark.parametrize(
    "annotations",
    [
        {BUNDLE: "text", CONFIGMAP: "specs"},
        {BUNDLE: 3},
        *({CONFIGMAP: name} for name in ("", "Specs", "-a", "a" * 254, "a/b/c", "a/..", "a\nb", "a/b c", "..", 3)),
    ],
)
def test_annotations_that_cannot_be_used_are_named(annotations: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as raised:
        find_spec(annotations)
    assert raised.value.place in (BUNDLE, CONFIGMAP)


def test_pods_that_ask_for_what_the_spec_plans_differ_in_nothing(spec_text: Callable[..., str]) -> None:
    planned = read(spec_text(gpu="H100-SXM-80GB"), "spec")
    asks = (Pods(count=1, gpus=1, product=H100), Pods(count=4, gpus=0, product=""))

    assert differences(asks, planned, products=(H100,)) == []
    assert differences((), planned, products=("NVIDIA-Unheard-Of",)) == []


def test_other_gpus_or_more_of_them_are_said_with_both_figures(spec_text: Callable[..., str]) -> None:
    planned = read(spec_text(gpu="H100-SXM-80GB"), "spec")

    assert differences((Pods(count=2, gpus=8, product=""),), planned, products=("Tesla-T4",)) == [
        "the pods ask for 16 nvidia.com/gpu, and the spec plans 1 GPU",
        "the pods go to Tesla-T4 (T4-16GB), and the spec plans H100-SXM-80GB",
    ]


def test_every_product_is_a_gpu_of_the_catalog() -> None:
    products = {name for name in catalog.names() if name != "MI300X-192GB"}  # the product label is NVIDIA's

    labelled = (catalog.by_node_label(gpu.node_label) for gpu in catalog.gpus().values() if gpu.node_label)

    assert {gpu.name for gpu in labelled if gpu is not None} == products


@pytest.mark.parametrize(
    ("product", "name"),
    [
        (H100, "H100-SXM-80GB"),
        ("nvidia-h100-80gb-hbm3", "H100-SXM-80GB"),
        (f"{H100}-SHARED", ""),
        (f"{H100}-MIG-1g.10gb", "H100-SXM-80GB:1g.10gb"),
        (f"{H100}-MIG-1g.10gb.me", "H100-SXM-80GB:1g.10gb"),
        (f"{H100}-MIG-1g.18gb", ""),
        ("", ""),
    ],
)
def test_a_label_names_a_gpu_or_its_mig_slice_and_none_that_takes_turns(product: str, name: str) -> None:
    found = catalog.by_node_label(product)

    assert (found.name if found else "") == name


def test_the_same_job_on_another_gpu(spec_text: Callable[..., str]) -> None:
    there, here = read(spec_text(gpu="T4-16GB"), "spec"), read(spec_text(gpu="H100-SXM-80GB"), "spec")

    assert job_on_gpu(here, "T4-16GB") == there
