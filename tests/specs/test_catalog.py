"""The GPU catalog."""

from __future__ import annotations

import re

import pytest

from planner.errors import SpecError
from planner.spec import catalog

ARCHITECTURES = {
    "V100-SXM2-16GB": "sm_70",
    "V100-SXM2-32GB": "sm_70",
    "V100-PCIE-16GB": "sm_70",
    "V100-PCIE-32GB": "sm_70",
    "T4-16GB": "sm_75",
    "A10G-24GB": "sm_86",
    "L4-24GB": "sm_89",
    "L40S-48GB": "sm_89",
    "A40-48GB": "sm_86",
    "RTX3090-24GB": "sm_86",
    "RTX4090-24GB": "sm_89",
    "A100-SXM-40GB": "sm_80",
    "A100-PCIE-40GB": "sm_80",
    "A100-SXM-80GB": "sm_80",
    "A100-PCIE-80GB": "sm_80",
    "H100-PCIE-80GB": "sm_90",
    "H100-SXM-80GB": "sm_90",
    "H100-NVL-94GB": "sm_90",
    "H200-SXM-141GB": "sm_90",
    "B200-SXM-180GB": "sm_100",
    "MI300X-192GB": "gfx942",
}


def test_the_catalog_has_these_gpus_with_these_architectures() -> None:
    assert {gpu.name: gpu.arch for gpu in catalog.gpus().values()} == ARCHITECTURES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gpu_gives_to_cuda_what_its_name_says_less_what_driver_and_ecc_take(name: str) -> None:
    """The GB of a name are GiB for GDDR and older HBM, 10^9 bytes for others: between them the figure must lie."""
    gpu = catalog.look_up(name)
    named = re.search(r"(\d+)GB$", name)

    assert named is not None
    assert 0.9 * int(named[1]) * 2**30 < gpu.total_bytes <= int(named[1]) * 2**30
    assert len(gpu.provenance) > 20
    assert gpu.aliases


def test_a_name_is_found_in_any_case() -> None:
    assert catalog.look_up("mi300x-192gb") is catalog.gpus()["MI300X-192GB"]


@pytest.mark.parametrize(
    ("alias", "names"),
    [
        ("h200", ["H200-SXM-141GB"]),
        ("H100", ["H100-PCIE-80GB", "H100-SXM-80GB", "H100-NVL-94GB"]),
        ("A100-80G", ["A100-SXM-80GB", "A100-PCIE-80GB"]),
        ("4090", ["RTX4090-24GB"]),
        ("tpu", []),
    ],
)
def test_schedulers_names_lead_to_all_gpus_that_they_may_mean(alias: str, names: list[str]) -> None:
    assert [gpu.name for gpu in catalog.by_alias(alias)] == names


def test_an_unknown_gpu_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(SpecError) as caught:
        catalog.look_up("L40-48GB")

    assert caught.value.remedy == "did you mean `L40S-48GB`?"
    assert caught.value.allowed.startswith("L40S-48GB, ")


def test_a_name_that_is_like_nothing_is_answered_with_the_whole_catalog() -> None:
    with pytest.raises(SpecError) as caught:
        catalog.look_up("?")

    assert caught.value.allowed.startswith(", ".join(ARCHITECTURES))
