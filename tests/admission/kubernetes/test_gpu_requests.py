"""What a pod asks for of GPUs is read with the part of each: slices, fractions, sizes, turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from planner.admission.gpu_requests import GpuRequest, combine, plan_part, read_gpu_requests
from planner.errors import SpecError
from planner.hardware import catalog
from planner.job.loading import load_yaml
from planner.units import GIB, MIB

H100 = "NVIDIA-H100-80GB-HBM3"


def container(
    limits: Mapping[str, Any] | None = None, name: str = "train", env: Mapping[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return {"name": name, "resources": {"limits": dict(limits or {}), **more}, "env": variables}


def pod(*containers: Mapping[str, Any], product: str = "", **more: Any) -> dict[str, Any]:
    selector = {"nvidia.com/gpu.product": product} if product else {}
    return {"containers": list(containers), "nodeSelector": selector, **more}


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({"nvidia.com/gpu": 8}, GpuRequest(count=8)),
        ({"nvidia.com/gpu": "8", "cpu": 4}, GpuRequest(count=8)),
        ({"amd.com/gpu": 4}, GpuRequest(resource="amd.com/gpu", count=4)),
        ({"nvidia.com/mig-1g.10gb": 1}, GpuRequest(resource="nvidia.com/mig-1g.10gb", count=1, profile="1g.10gb")),
        (
            {"nvidia.com/mig-1g.10gb.me": "2"},
            GpuRequest(resource="nvidia.com/mig-1g.10gb.me", count=2, profile="1g.10gb"),
        ),
        ({"nvidia.com/gpu.shared": 1}, GpuRequest(resource="nvidia.com/gpu.shared", count=1, shared=True)),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, GpuRequest(count=1, memory_bytes=3000 * MIB)),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50}, GpuRequest(count=2, fraction=0.5)),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0}, GpuRequest(count=1)),
        (
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024},
            GpuRequest(resource="volcano.sh/vgpu-number", count=1, memory_bytes=GIB),
        ),
    ],
)  # fmt: skip
def test_resources_say_which_part(limits: Mapping[str, Any], request_: GpuRequest) -> None:
    (found,) = read_gpu_requests(pod(container(limits)), {})

    assert found == GpuRequest(
        container="train", resource=request_.resource, count=request_.count, profile=request_.profile,
        fraction=request_.fraction, memory_bytes=request_.memory_bytes, shared=request_.shared,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "product", "gpu"),
    [
        ("nvidia.com/a40", "a40", "A40-48GB"),
        ("nvidia.com/A100", "a100", "A100-SXM-80GB"),
        ("nvidia.com/rtxa6000", "rtxa6000", "RTX-A6000-48GB"),
        ("nvidia.com/rtx8000", "rtx8000", "Quadro-RTX-8000-48GB"),
        ("nvidia.com/gh200", "gh200", "GH200-96GB"),
        ("nvidia.com/gpu-v100", "v100", "V100-SXM2-16GB"),
        ("nvidia.com/gpu-a100-80gb", "a100-80gb", "A100-SXM-80GB"),
        ("nvidia.com/v100-sxm2-16gb", "v100-sxm2-16gb", "V100-SXM2-16GB"),
        ("nvidia.com/1080ti", "1080ti", "GTX1080Ti-11GB"),
        ("nvidia.com/rtx6000bw", "rtx6000bw", "RTX-PRO-6000-Server-96GB"),
        ("nvidia.com/TU104GL_Tesla_T4", "tesla_t4", "T4-16GB"),
        ("nvidia.com/GA100GL_A30_PCIE", "a30_pcie", "A30-PCIE-24GB"),
        ("nvidia.com/GH100_H200_SXM_141GB", "h200_sxm_141gb", "H200-SXM-141GB"),
        ("amd.com/mi300x", "mi300x", "MI300X-192GB"),
    ],
)
def test_a_resource_that_is_called_by_its_product_is_that_gpu(resource: str, product: str, gpu: str) -> None:
    (found,) = read_gpu_requests(pod(container({resource: 4})), {})
    known = found.gpu()

    assert found == GpuRequest(container="train", resource=resource, count=4, product=product)
    assert (known.name if known else "") == gpu


@pytest.mark.parametrize(
    ("resource", "product", "gib"),
    [("nvidia.com/GRID_T4-2Q", "t4", 2), ("nvidia.com/NVIDIA_A10-24Q", "nvidia_a10", 24),
     ("nvidia.com/GRID_A100-1-10C", "a100", 10)],
)  # fmt: skip
def test_a_virtual_gpu_has_the_memory_that_its_name_says(resource: str, product: str, gib: int) -> None:
    (found,) = read_gpu_requests(pod(container({resource: 1})), {})

    assert found == GpuRequest(container="train", resource=resource, count=1, product=product, memory_bytes=gib * GIB)


@pytest.mark.parametrize(
    ("resource", "share"),
    [("amd.com/spx_nps1", 1), ("amd.com/dpx_nps2", 1 / 2), ("amd.com/qpx_nps1", 1 / 4), ("amd.com/cpx_nps4", 1 / 8),
     ("amd.com/cpx_nps1", 1 / 8)],
)  # fmt: skip
def test_a_partition_of_an_amd_gpu_is_a_gpu_with_its_share_of_the_memory(resource: str, share: float) -> None:
    (found,) = read_gpu_requests(pod(container({resource: 16})), {})

    assert found == GpuRequest(container="train", resource=resource, count=16, fraction=share)


def test_labels_of_nodes_say_which_amd_gpu_it_is_and_how_it_is_partitioned() -> None:
    labels = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/compute-memory-partition": "dpx_nps1"}
    (found,) = read_gpu_requests({"containers": [container({"amd.com/gpu": 2})], "nodeSelector": labels}, {})
    known = found.gpu()

    assert (found.count, found.fraction, known.name if known else "") == (2, 0.5, "MI300X-192GB")


def test_products_take_turns_and_have_limits_as_gpus_do() -> None:
    shared, limited = (
        read_gpu_requests(pod(container(limits)), {})[0]
        for limits in ({"nvidia.com/a100.shared": 1}, {"nvidia.com/gpu-v100": 1, "nvidia.com/gpumem": 3000})
    )

    assert (shared.product, shared.shared) == ("a100", True)
    assert (limited.product, limited.memory_bytes) == ("v100", 3000 * MIB)


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/hostdev", "nvidia.com/rdma_shared_device_a", "nvidia.com/sriov_p0", "nvidia.com/cx6", "nvidia.com/bf3",
     "nvidia.com/gpucores", "nvidia.com/gpumem-percentage", "amd.com/sev", "example.com/v100"],
)  # fmt: skip
def test_networks_and_amounts_are_not_gpus(resource: str) -> None:
    assert read_gpu_requests(pod(container({resource: 1})), {}) == ()


A100_80 = "NVIDIA-A100-SXM4-80GB"


def affinity(*values: list[str]) -> dict[str, Any]:
    terms = [
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": each}]} for each in values
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("nodes", "product"),
    [
        ({"product": A100_80}, A100_80),
        (affinity([A100_80]), A100_80),
        (affinity([A100_80], [A100_80]), A100_80),
        (affinity([A100_80, "NVIDIA-A100-80GB-PCIe"]), "a100"),
        (affinity([A100_80], ["NVIDIA-A100-80GB-PCIe"]), "a100"),
        ({"affinity": {"nodeAffinity": 3}}, "a100"),
        ({}, "a100"),
    ],
)
def test_nodes_of_one_product_say_more_than_the_resource(nodes: dict[str, Any], product: str) -> None:
    (found,) = read_gpu_requests(pod(container({"nvidia.com/a100": 1}), **nodes), {})

    assert found.product == product


@pytest.mark.parametrize("limits", [{}, {"cpu": 8}, {"nvidia.com/gpu": 0}, {"nvidia.com/gpu": "x"}, None])
def test_a_pod_without_gpus_asks_for_none(limits: Any) -> None:
    assert read_gpu_requests(pod(container(limits)), {}) == ()


def test_requests_count_where_no_limit_is_written() -> None:
    (found,) = read_gpu_requests(pod(container(requests={"nvidia.com/gpu": 2})), {})

    assert found.count == 2


@pytest.mark.parametrize(
    ("annotations", "name", "fraction", "memory_bytes", "count"),
    [
        ({"gpu-fraction": "0.5"}, "side", 0.5, 0, 1),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "train"}, "train", 0.5, 0, 1),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}, "side", 1.0, 2000 * MIB, 2),
    ],
)
def test_annotations_of_kai_are_those_of_one_container(
    annotations: Mapping[str, str], name: str, fraction: float, memory_bytes: int, count: int
) -> None:
    (found,) = read_gpu_requests(pod(container(name="side"), container()), annotations)

    assert found == GpuRequest(container=name, count=count, fraction=fraction, memory_bytes=memory_bytes)


@pytest.mark.parametrize("written", ["", "half", "-0.5", "2", ".", "1e9", None, 0.5])
def test_a_fraction_that_is_none_asks_for_nothing(written: Any) -> None:
    assert read_gpu_requests(pod(container()), {"gpu-fraction": written}) == ()


@pytest.mark.parametrize(("written", "memory_bytes"), [("0=4G", 4 * GIB), ("0=4G,1=512M", 512 * MIB), ("nonsense", 0)])
def test_the_limit_of_mps_is_that_of_the_gpu_that_may_be_used_least(written: str, memory_bytes: int) -> None:
    env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": written}
    (found,) = read_gpu_requests(pod(container({"nvidia.com/gpu.shared": 1}, env=env)), {})

    assert (found.memory_bytes, found.shared) == (memory_bytes, not memory_bytes)


CLAIM = {
    "devices": {
        "requests": [
            {
                "name": "slice",
                "exactly": {
                    "deviceClassName": "mig.nvidia.com",
                    "count": 2,
                    "selectors": [
                        {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}
                    ],
                },
            },
            {"name": "nic", "exactly": {"deviceClassName": "rdma.example.com"}},
        ]
    }
}  # fmt: skip


@pytest.mark.parametrize(
    ("claim", "kind", "spec"),
    [
        ({"name": "gpus", "resourceClaimName": "mine"}, "ResourceClaim", CLAIM),
        ({"name": "gpus", "resourceClaimTemplateName": "mine"}, "ResourceClaimTemplate", {"spec": CLAIM}),
    ],
)
def test_a_claim_of_dra_is_looked_up_and_read(claim: Mapping[str, str], kind: str, spec: Mapping[str, Any]) -> None:
    def find_claim(asked: str, name: str) -> Mapping[str, Any]:
        return spec if (asked, name) == (kind, "mine") else {}

    found = read_gpu_requests(pod(container(claims=[{"name": "gpus"}]), resourceClaims=[claim]), {}, find_claim)

    assert found == (GpuRequest(container="train", resource="mig.nvidia.com", count=2, profile="1g.10gb"),)


def test_a_job_with_more_than_any_training_has_is_not_read() -> None:
    gpus = {"nvidia.com/gpu": 1}
    claims = [{"name": f"c{place}", "resourceClaimName": f"c{place}"} for place in range(65)]
    used = container(claims=[{"name": f"c{place}"} for place in range(64)])
    devices = {"requests": [{"name": f"r{place}", "deviceClassName": "gpu.nvidia.com"} for place in range(32)]}
    for asked, said in (
        (pod(*[container(gpus)] * 1_001), "1,001 containers"),
        (pod(resourceClaims=claims), "65 claims of devices"),
        (pod(*[used] * 3, resourceClaims=claims[:64]), "requests for GPUs"),
    ):
        with pytest.raises(SpecError, match=said):
            read_gpu_requests(asked, {}, lambda *_: {"devices": devices})


def test_a_product_is_looked_up_in_the_catalog_once_for_all_that_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    by_any_name = catalog.by_any_name
    monkeypatch.setattr(catalog, "by_any_name", lambda name: asked.append(name) or by_any_name(name))
    requests = read_gpu_requests(pod(*[container({"nvidia.com/gpu": 1})] * 1_000, product="Nobody-Knows-It"), {})

    assert combine(requests) == requests[0]
    assert asked == ["Nobody-Knows-It"]


def test_a_claim_of_an_amd_partition_has_its_share() -> None:
    expression = "device.attributes['gpu.amd.com'].computePartition == 'cpx'"
    request_ = {"deviceClassName": "gpu.amd.com", "selectors": [{"cel": {"expression": expression}}]}
    claims = [{"name": "gpus", "resourceClaimName": "mine"}]
    devices = {"requests": [{"name": "gpu", "exactly": request_}]}

    found = read_gpu_requests(
        pod(container(claims=[{"name": "gpus"}]), resourceClaims=claims), {}, lambda *_: {"devices": devices}
    )

    assert found == (GpuRequest(container="train", resource="gpu.amd.com", count=1, fraction=1 / 8),)


def test_a_claim_of_the_first_version_with_a_limit_of_mps() -> None:
    request_ = {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}
    parameters = {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "10Gi"}}}
    devices = {"requests": [request_], "config": [{"requests": ["gpu"], "opaque": {"parameters": parameters}}]}
    claims = [{"name": "gpus", "resourceClaimName": "mine"}]

    found = read_gpu_requests(
        pod(container(claims=[{"name": "gpus"}]), resourceClaims=claims), {}, lambda *_: {"devices": devices}
    )

    assert found == (GpuRequest(container="train", resource="gpu.nvidia.com", count=1, memory_bytes=10 * GIB),)


@pytest.mark.parametrize(
    ("product", "profile", "planned", "name"),
    [
        (H100, "", "", "H100-SXM-80GB"),
        (H100, "1g.10gb", "", "H100-SXM-80GB:1g.10gb"),
        (f"{H100}-MIG-1g.10gb", "", "", "H100-SXM-80GB:1g.10gb"),
        ("", "1g.10gb", "H100-SXM-80GB", "H100-SXM-80GB:1g.10gb"),
        ("", "2g.20gb", "H100-SXM-80GB:1g.10gb", "H100-SXM-80GB:2g.20gb"),
        ("", "1g.6gb", "H100-SXM-80GB", ""),
        ("", "1g.10gb", "", ""),
    ],
)
def test_the_gpu_of_a_request_is_that_of_its_label_or_of_the_plan(
    product: str, profile: str, planned: str, name: str
) -> None:
    found = GpuRequest(count=1, product=product, profile=profile).gpu(planned)

    assert (found.name if found else "") == name


def test_a_label_of_nodes_whose_gpus_take_turns_is_shared() -> None:
    (found,) = read_gpu_requests(pod(container({"nvidia.com/gpu": 1}), product="Tesla-T4-SHARED"), {})

    assert found.shared


def test_a_slice_whose_name_does_not_say_its_size_is_planned_as_the_spec_says(spec_text: Callable[..., str]) -> None:
    job = load_yaml(spec_text())
    requests = read_gpu_requests(pod(container({"nvidia.com/mig-small": 1})), {})

    assert plan_part(job, requests) == (
        job, ["nvidia.com/mig-small does not say which slice it is: planned as the spec says"],
    )  # fmt: skip


def test_of_several_parts_a_job_has_to_fit_the_smallest() -> None:
    half, quarter = GpuRequest(count=1, fraction=0.5), GpuRequest(count=1, fraction=0.25)

    assert combine([half, quarter]) == quarter
    assert combine([]) is None
