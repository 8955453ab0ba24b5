"""What a pod or a Slurm job asks for of GPUs is read with the slice of each, and whether others use them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.admission.gpu_requests import GpuRequest, combine, read_gpu_requests, read_gres

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
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, GpuRequest(count=1, shared=True)),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50}, GpuRequest(count=2, shared=True)),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0}, GpuRequest(count=1)),
        (
            {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024},
            GpuRequest(resource="volcano.sh/vgpu-number", count=1, shared=True),
        ),
    ],
)  # fmt: skip
def test_resources_say_which_part(limits: Mapping[str, Any], request_: GpuRequest) -> None:
    (found,) = read_gpu_requests(pod(container(limits)), {})

    assert found == GpuRequest(
        container="train", resource=request_.resource, count=request_.count, profile=request_.profile,
        shared=request_.shared,
    )  # fmt: skip


@pytest.mark.parametrize("limits", [{}, {"cpu": 8}, {"nvidia.com/gpu": 0}, {"nvidia.com/gpu": "x"}, None])
def test_a_pod_without_gpus_asks_for_none(limits: Any) -> None:
    assert read_gpu_requests(pod(container(limits)), {}) == ()


def test_requests_count_where_no_limit_is_written() -> None:
    (found,) = read_gpu_requests(pod(container(requests={"nvidia.com/gpu": 2})), {})

    assert found.count == 2


@pytest.mark.parametrize(
    ("annotations", "count"),
    [({"gpu-fraction": "0.5"}, 1), ({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}, 2)],
)
def test_a_share_that_annotations_say_is_one_of_the_first_container(annotations: Mapping[str, str], count: int) -> None:
    (found,) = read_gpu_requests(pod(container(name="side"), container()), annotations)

    assert found == GpuRequest(container="side", count=count, shared=True)


def test_a_client_of_mps_shares_its_gpu() -> None:
    env = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4G"}
    (found,) = read_gpu_requests(pod(container({"nvidia.com/gpu": 1}, env=env)), {})

    assert found.shared


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


def test_of_several_slices_a_job_has_to_fit_the_smallest() -> None:
    small, large = (GpuRequest(count=1, product=H100, profile=profile) for profile in ("1g.10gb", "3g.40gb"))

    assert combine([large, small]) == small
    assert combine([]) is None
