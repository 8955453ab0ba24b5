"""MIG slices are GPUs of the catalog, with the memory that CUDA reports and their own multiprocessors."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.hardware import catalog, mig
from planner.hardware.gpu_records import GpuRecord
from planner.job import named_gpus
from planner.units import MIB

SLICES = [part for parts in catalog.slices().values() for part in parts]


def described(gpu: GpuRecord) -> tuple[str, int, int]:
    return gpu.name, gpu.total_bytes // MIB, gpu.multiprocessors


def test_a_slice_has_what_nvidia_smi_lists_of_its_profile() -> None:
    assert [described(part) for part in catalog.slices()["H100-SXM-80GB"]] == [
        ("H100-SXM-80GB:1g.10gb", 9984, 16),
        ("H100-SXM-80GB:1g.20gb", 20096, 26),
        ("H100-SXM-80GB:2g.20gb", 20096, 32),
        ("H100-SXM-80GB:3g.40gb", 40448, 60),
        ("H100-SXM-80GB:4g.40gb", 40448, 64),
        ("H100-SXM-80GB:7g.80gb", 80998, 132),
    ]


@pytest.mark.parametrize(
    ("name", "reported_bytes"),
    [
        ("A100-PCIE-80GB:1g.10gb", 9728 * MIB),
        ("H100-PCIE-80GB:1g.10gb", 9984 * MIB),
        ("H200-SXM-141GB:3g.71gb", 74625056768),
        ("B200-SXM-180GB:2g.45gb", int(44.25 * 1024) * MIB),
        ("B200-SXM-180GB:1g.23gb", 20992 * MIB),
    ],
)
def test_that_is_what_cuda_reported_of_slices_in_public_logs(name: str, reported_bytes: int) -> None:
    assert named_gpus.look_up(name).total_bytes == reported_bytes


@pytest.mark.parametrize("part", SLICES, ids=lambda part: part.name)
def test_a_slice_is_less_than_its_gpu_and_names_where_its_figures_are_from(part: GpuRecord) -> None:
    whole = catalog.gpus()[part.whole]

    assert part.total_bytes <= whole.total_bytes
    assert 0 < part.multiprocessors <= whole.multiprocessors
    assert (part.arch, part.model, part.name) == (whole.arch, whole.model, f"{whole.name}:{part.slice}")
    assert len(part.provenance) > 15


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-SXM-80GB:1g.10gb", "H100-SXM-80GB:1g.10gb"),
        ("h100-sxm-80gb:1G.10GB", "H100-SXM-80GB:1g.10gb"),
        ("H100:1g.10gb", "H100-SXM-80GB:1g.10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-SXM-80GB:1g.10gb"),
        ("H100 PCIe 1g.10gb+me", "H100-PCIE-80GB:1g.10gb"),
        ("A100-SXM4-40GB MIG 1c.3g.20gb", "A100-SXM-40GB:3g.20gb"),
        ("nvidia_a100_3g.39gb", "A100-SXM-80GB:3g.40gb"),
        ("1g.23gb", "B200-SXM-180GB:1g.23gb"),
        ("NVIDIA A800 80GB PCIe MIG 7g.80gb", "A800-PCIE-80GB:7g.80gb"),
        ("H800:1g.10gb", "H800-SXM-80GB:1g.10gb"),
        ("NVIDIA-H20-MIG-1g.12gb", "H20-SXM-96GB:1g.12gb"),
        ("RTX PRO 6000 1g.24gb", "RTX-PRO-6000-Server-96GB:1g.24gb"),
    ],
)
def test_a_slice_is_found_by_what_people_and_schedulers_call_it(written: str, name: str) -> None:
    assert named_gpus.look_up(written).name == name


@pytest.mark.parametrize(("sold_apart", "alike"), [("A800", "A100"), ("H800", "H100")])
@pytest.mark.parametrize("socket", ["SXM", "PCIE"])
def test_gpus_that_differ_in_nvlink_alone_have_the_same_slices(sold_apart: str, alike: str, socket: str) -> None:
    one, other = (
        [(part.slice, part.total_bytes, part.multiprocessors) for part in catalog.slices()[f"{name}-{socket}-80GB"]]
        for name in (sold_apart, alike)
    )

    assert one == other


def test_a_profile_that_a_gpu_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(SpecError) as refused:
        named_gpus.look_up("A30:1g.10gb")

    assert "A30-PCIE-24GB:1g.6gb, A30-PCIE-24GB:2g.12gb, A30-PCIE-24GB:4g.24gb" in str(refused.value)
    assert "A30-PCIE-24GB has no slice 1g.10gb" in str(refused.value)


def test_a_profile_alone_leaves_the_model_open() -> None:
    with pytest.raises(SpecError, match=r"H100-SXM-80GB:1g.10gb"):
        named_gpus.look_up("1g.10gb")


@pytest.mark.parametrize(
    ("text", "profile", "whole"),
    [
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb", "nvidia.com"),
        ("a100_1g.5gb", "1g.5gb", "a100"),
        ("NVIDIA-A30-MIG-1g.6gb", "1g.6gb", "NVIDIA-A30"),
        ("NVIDIA A100-SXM4-40GB", "", "NVIDIA A100-SXM4-40GB"),
        ("H100-80GB", "", "H100-80GB"),
    ],
)
def test_the_profile_within_a_text(text: str, profile: str, whole: str) -> None:
    assert (mig.profile_in(text), mig.without_profile(text)) == (profile, whole)
