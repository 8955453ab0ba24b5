"""What a pod or a Slurm job asks for of GPUs is read with the part of each: slices, fractions, sizes, turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.admission.gpu_requests import GpuRequest, combine, read_gpu_requests, read_gres
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


@pytest.mark.parametrize(
    ("written", "requests"),
    [
        ("gpu", [(1, "", "")]),
        ("gpu:2", [(2, "", "")]),
        ("gpu:h100:8", [(8, "h100", "")]),
        ("gpu:1g.10gb:1", [(1, "", "1g.10gb")]),
        ("gpu:a100_3g.20gb:1,lustre:1", [(1, "a100", "3g.20gb")]),
        ("gres/gpu:nvidia_h100_80gb_hbm3_1g.10gb=2", [(2, "nvidia h100 80gb hbm3", "1g.10gb")]),
        ("mps:100", []),
        ("", []),
    ],
)
def test_a_gres_of_slurm(written: str, requests: list[tuple[int, str, str]]) -> None:
    assert [(found.count, found.product, found.profile) for found in read_gres(written)] == requests


def test_a_slice_of_slurm_is_one_of_the_catalog() -> None:
    (found,) = read_gres("gpu:nvidia_h100_80gb_hbm3_1g.10gb:1")
    gpu = found.gpu()

    assert gpu is not None
    assert gpu.name == "H100-SXM-80GB:1g.10gb"


def test_of_several_parts_a_job_has_to_fit_the_smallest() -> None:
    half, quarter = GpuRequest(count=1, fraction=0.5), GpuRequest(count=1, fraction=0.25)

    assert combine([half, quarter]) == quarter
    assert combine([]) is None
