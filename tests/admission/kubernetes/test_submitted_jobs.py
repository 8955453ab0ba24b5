"""What a job asks for, by its object: pods and GPUs of each kind, and annotations that carry a spec."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from planner.admission.gpu_requests import GpuRequest
from planner.admission.kubernetes import (
    BUNDLE,
    CONFIGMAP,
    differences,
    job_of,
    read,
    read_submission,
)
from planner.admission.kubernetes_api import ApiError
from planner.admission.workload_kinds import JobPods, Pods
from planner.errors import SpecError
from planner.hardware import catalog

H100 = "NVIDIA-H100-80GB-HBM3"


def asks(gpus: int, ranks: int = 0, resource: str = "nvidia.com/gpu", product: str = "") -> JobPods:
    """One pod that asks for so many."""
    request = GpuRequest(count=gpus, resource=resource, product=product)
    return JobPods(pods=(Pods(count=1, requests=(request,) if gpus else (), processes=ranks),))


def test_gpus_are_a_quantity_or_a_number_in_limits_or_requests() -> None:
    for resources in ({"limits": {"nvidia.com/gpu": "4"}}, {"requests": {"nvidia.com/gpu": 4}}):
        container = {"name": "main", "resources": resources}
        job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}

        assert read_submission(job).asked.gpus == 4


def container_of(name: str, count: Any = 1) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": {name: count}}}]}


ASKING = {
    "a pod": {"kind": "Pod", "spec": container_of("nvidia.com/gpu")},
    "a part of a GPU": {"kind": "Job", "spec": {"template": {"spec": container_of("nvidia.com/mig-1g.10gb")}}},
    "another vendor's": {"kind": "Job", "spec": {"template": {"spec": container_of("amd.com/gpu")}}},
    "a shared one": {"kind": "Job", "spec": {"template": {"spec": container_of("nvidia.com/gpu.shared", "2")}}},
    "AMD's partition": {"kind": "Job", "spec": {"template": {"spec": container_of("amd.com/cpx_nps4", 8)}}},
    "one of a product": {"kind": "Job", "spec": {"template": {"spec": container_of("nvidia.com/a100")}}},
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


def test_none_and_no_gpu_ask_for_nothing() -> None:
    for job in (
        {"kind": "Pod", "spec": container_of("nvidia.com/gpu", "0")},
        {"kind": "Pod", "spec": container_of("example.com/gpus-of-the-mind", 0)},
        {"kind": "Pod", "spec": container_of("cpu", 4)},
    ):
        assert not read_submission(job).asks_for_gpus


def test_a_claim_of_something_unknown_asks_for_a_gpu() -> None:
    container = {"name": "main", "resources": {"claims": [{"name": "devices"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "devices", "resourceClaimName": "mine"}]}

    assert read_submission({"apiVersion": "v1", "kind": "Pod", "spec": spec}).asks_for_gpus


def test_a_job_is_known_by_its_uid_and_without_one_by_its_name() -> None:
    metadata = {"name": "sft", "namespace": "nlp"}

    assert read_submission({"metadata": {**metadata, "uid": "0815"}}).job_id == "0815"
    assert read_submission({"metadata": metadata}).job_id == "nlp.sft"


@pytest.mark.parametrize(("status", "requests"), [(0, 1), (403, 2), (200, 2)], ids=["away", "refused", "there"])
def test_each_claim_of_a_job_is_asked_for_once_and_none_more_of_an_api_that_is_away(status: int, requests: int) -> None:
    paths: list[str] = []

    def get(path: str) -> dict[str, Any]:
        paths.append(path)
        if status != 200:
            raise ApiError(status, "no")
        return {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}]}}}}

    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("a", "b")]
    container = {"name": "main", "resources": {"claims": [{"name": "a"}, {"name": "b"}]}}
    template = {"spec": {"template": {"spec": {"containers": [container] * 10, "resourceClaims": claims}}}}
    job = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "spec": {"replicatedJobs": [{"name": str(place), "template": template} for place in range(20)]},
    }
    found = read_submission(job, "nlp", lambda: SimpleNamespace(get=get))

    assert found.asked.gpus == (400 if status == 200 else 0)
    assert len(paths) == requests


def test_nothing_of_a_jobs_pods_is_read_before_somebody_asks_about_them() -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    job = {"apiVersion": "v1", "kind": "Pod", "metadata": {"uid": "1"}, "spec": {"containers": [container] * 2_500}}
    found = read_submission(job)

    assert (found.job_id, found.carries_spec, found.is_part_of_job) == ("1", False, False)
    with pytest.raises(SpecError, match="2,500 containers"):
        assert found.asks_for_gpus


@pytest.mark.parametrize(
    ("named", "path", "key"),
    [
        ("specs", "/api/v1/namespaces/nlp/configmaps/specs", "job.yaml"),
        ("my.specs-1/llama.yaml", "/api/v1/namespaces/nlp/configmaps/my.specs-1", "llama.yaml"),
    ],
)
def test_annotations_say_in_which_config_map_the_spec_stands(
    spec_text: Callable[..., str], named: str, path: str, key: str
) -> None:
    api = SimpleNamespace(get=lambda asked: {"data": {key: spec_text()}} if asked == path else {})

    assert job_of({CONFIGMAP: named}, "nlp", lambda: api) == job_of({BUNDLE: spec_text()}, "nlp", lambda: api)


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
        job_of(annotations, "nlp", lambda: SimpleNamespace())
    assert raised.value.place in (BUNDLE, CONFIGMAP)


def test_pods_that_ask_for_what_the_spec_plans_differ_in_nothing(spec_text: Callable[..., str]) -> None:
    planned = read(spec_text(gpu="H100-SXM-80GB"), "spec")

    assert differences(asks(1, product=H100), planned) == []
    assert differences(asks(1, product="NVIDIA-Unheard-Of"), planned) == []
    assert differences(asks(0), planned) == []


def test_other_gpus_or_more_of_them_are_said_with_both_figures(spec_text: Callable[..., str]) -> None:
    planned = read(spec_text(gpu="H100-SXM-80GB"), "spec")

    assert differences(asks(16, product="Tesla-T4"), planned) == [
        "the pods ask for 16 nvidia.com/gpu, and the spec plans 1 GPU",
        "the pods go to Tesla-T4 (T4-16GB), and the spec plans H100-SXM-80GB",
    ]


def test_gpus_of_another_maker_and_ranks_that_are_not_one_for_each_gpu_are_said(spec_text: Callable[..., str]) -> None:
    planned = read(spec_text(gpu="MI300X-192GB"), "spec")

    assert differences(asks(8, resource="amd.com/gpu"), planned) == [
        "the pods ask for 8 amd.com/gpu, and the spec plans 1 GPU"
    ]
    assert differences(asks(1, ranks=4), planned) == ["the job starts 4 ranks, and the spec plans 1 GPU"]


@pytest.mark.parametrize("resource", ["gpu.intel.com/i915", "amd.com/zpx_nps9", "example.com/vgpu-number"])
def test_a_resource_of_gpus_that_is_not_read_is_named_and_not_none(
    spec_text: Callable[..., str], resource: str
) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": container_of(resource, 4)}}}

    assert differences(read_submission(job).asked, read(spec_text(), "spec")) == [
        f"planner does not know the resource {resource}: its GPUs are not counted"
    ]


def test_resources_beside_gpus_that_are_read_are_not_named(spec_text: Callable[..., str]) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}}
    job = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}

    assert differences(read_submission(job).asked, read(spec_text(), "spec")) == []


def test_a_claim_that_cannot_be_read_is_named(spec_text: Callable[..., str]) -> None:
    container = {"name": "main", "resources": {"claims": [{"name": "devices"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "devices", "resourceClaimName": "mine"}]}
    asked = read_submission({"apiVersion": "v1", "kind": "Pod", "spec": spec}).asked

    assert differences(asked, read(spec_text(), "spec")) == [
        "planner does not know the claim devices: its GPUs are not counted"
    ]


def test_a_product_that_may_be_several_gpus_differs_only_from_others(spec_text: Callable[..., str]) -> None:
    for gpu, sentences in (
        ("A100-PCIE-40GB", []),
        ("A100-SXM-80GB", []),
        ("H100-SXM-80GB", ["the pods go to a100 (A100), and the spec plans H100-SXM-80GB"]),
    ):
        assert differences(asks(1, product="a100"), read(spec_text(gpu=gpu), "spec")) == sentences


def test_a_pytorch_job_that_asks_for_a_product_has_its_gpus_and_ranks() -> None:
    resources = {"limits": {"nvidia.com/a40": 4, "cpu": "16"}, "requests": {"nvidia.com/a40": 4, "cpu": "12"}}
    command = ["torchrun", "--nproc-per-node=4", "train.py"]
    container = {"name": "pytorch", "command": command, "resources": resources}
    master = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    found = read_submission(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {"Master": master}}}
    )

    assert (found.asked.gpus, found.asked.ranks, found.asked.resources, found.gpu) == (
        4, 4, ("nvidia.com/a40",), "A40-48GB",
    )  # fmt: skip


def test_every_product_is_a_gpu_of_the_catalog() -> None:
    products = {name for name in catalog.names() if not name.startswith("MI")}  # the product label is NVIDIA's

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
