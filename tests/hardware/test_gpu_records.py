"""Each GPU has one record, found by whatever jobs, schedulers and clusters call it."""

from __future__ import annotations

import re

import pytest

from planner.errors import SpecError
from planner.hardware import catalog
from planner.hardware.architectures import ARCHITECTURES
from planner.hardware.gpu_records import GpuRecord
from planner.job import named_gpus

NAMES = list(catalog.gpus())


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_gives_to_cuda_what_its_name_says_less_what_driver_and_ecc_take(name: str) -> None:
    """The GB of a name are GiB for GDDR and older HBM, 10^9 bytes for others: between them the figure must lie."""
    gpu = named_gpus.look_up(name)
    named = re.search(r"(\d+)GB$", name)

    assert named is not None
    has = gpu.total_bytes if gpu.pool is None else gpu.pool.total_bytes
    assert 0.9 * int(named[1]) * 2**30 < has <= int(named[1]) * 2**30
    assert len(gpu.provenance) > 20
    assert gpu.aliases


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_is_of_an_architecture_whose_kernels_are_known(name: str) -> None:
    assert named_gpus.look_up(name).arch in ARCHITECTURES


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_has_the_multiprocessors_of_its_reference_gpu(arch: str) -> None:
    reference = catalog.gpus()[ARCHITECTURES[arch].reference_gpu]

    assert (reference.arch, reference.multiprocessors) == (arch, ARCHITECTURES[arch].multiprocessors)


PEAKS = [
    ("P100-PCIE-16GB", 128, 1.3),
    ("P100-SXM2-16GB", 128, 1.48),
    ("P40-24GB", 256, 1.531),
    ("GTX1080-8GB", 256, 1.733),
    ("GTX1080Ti-11GB", 256, 1.582),
    ("TITAN-Xp-12GB", 256, 1.582),
    ("V100S-PCIE-32GB", 1024, 1.597),
    ("A2-16GB", 1024, 1.77),
    ("A16-16GB", 1024, 1.755),
    ("A10-24GB", 1024, 1.695),
    ("L20-48GB", 512, 2.52),
    ("L40-48GB", 512, 2.49),
    ("RTX-A4000-16GB", 1024, 1.56),
    ("RTX-A5000-24GB", 1024, 1.695),
    ("RTX-A6000-48GB", 1024, 1.8),
    ("RTX2080Ti-11GB", 512, 1.545),
    ("Quadro-RTX-6000-24GB", 1024, 1.77),
    ("Quadro-RTX-8000-48GB", 1024, 1.77),
    ("TITAN-RTX-24GB", 1024, 1.77),
    ("RTX-A5500-24GB", 1024, 1.665),
    ("RTX3060-12GB", 512, 1.777),
    ("RTX3080-10GB", 512, 1.71),
    ("RTX3090Ti-24GB", 512, 1.86),
    ("RTX4060Ti-16GB", 512, 2.535),
    ("RTX4070Ti-12GB", 512, 2.61),
    ("RTX-PRO-6000-Server-96GB", 1024, 2.43),
    ("RTX-PRO-6000-Workstation-96GB", 1024, 2.617),
    ("RTX-PRO-6000-MaxQ-96GB", 1024, 2.28),
    ("A800-SXM-80GB", 2048, 1.41),
    ("MI210-64GB", 1024, 1.7),
    ("MI250X-64GB", 1024, 1.7),
    ("MI325X-256GB", 2048, 2.1),
]
"""What a multiprocessor computes in a cycle, without sparsity and with sums in float32, and the boost clock in GHz:
architecture whitepapers of NVIDIA and AMD; clocks of TechPowerUp and, of RTX PRO 6000, NVIDIA's product brief
SP-12355 and whitepaper."""


@pytest.mark.parametrize(("name", "operations_a_cycle", "ghz"), PEAKS)
def test_a_dense_peak_is_what_all_multiprocessors_compute_at_the_boost_clock(
    name: str, operations_a_cycle: int, ghz: float
) -> None:
    speed, gpu = catalog.speed_of(name), catalog.gpus()[name]

    assert speed is not None
    assert speed.teraflops == pytest.approx(gpu.multiprocessors * operations_a_cycle * ghz / 1000, rel=0.01)


def test_no_two_gpus_have_one_product() -> None:
    products = [gpu.product for gpu in catalog.gpus().values() if gpu.product]

    assert len(products) == len(set(products))
    assert len(products) == sum(gpu.arch.startswith("sm_") for gpu in catalog.gpus().values())


@pytest.mark.parametrize(
    ("name", "model", "found"),
    [
        ("H100-NVL-94GB", "H100", True),
        ("h100-sxm-80gb", "H100", True),
        ("RTX3090-24GB", "RTX-3090", True),
        ("H100-of-another-vendor", "H100", True),
        ("RTX-3090Ti", "RTX-3090", False),
        ("H200-SXM-141GB", "H100", False),
    ],
)
def test_a_gpu_is_of_the_model_of_its_record_or_of_its_name(name: str, model: str, found: bool) -> None:
    assert catalog.is_model(name, model) is found


def test_a_name_is_found_in_any_case() -> None:
    assert named_gpus.look_up("mi300x-192gb") is catalog.gpus()["MI300X-192GB"]


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
        named_gpus.look_up("L40X-48GB")

    assert caught.value.remedy == "did you mean `L40-48GB`?"
    assert caught.value.allowed.startswith("L40-48GB, L40S-48GB, ")


def test_a_name_that_is_like_nothing_is_answered_with_the_whole_catalog() -> None:
    with pytest.raises(SpecError) as caught:
        named_gpus.look_up("?")

    assert caught.value.allowed.startswith(", ".join(NAMES))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100-SXM-80GB"),
        ("h100 sxm", "H100-SXM-80GB"),
        ("H100 SXM5", "H100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),
        ("a100", "A100-SXM-80GB"),
        ("A100 80GB PCIe", "A100-PCIE-80GB"),
        ("4090", "RTX4090-24GB"),
        ("NVIDIA GeForce RTX 3090", "RTX3090-24GB"),
        ("Tesla T4", "T4-16GB"),
        ("AMD Instinct MI300X", "MI300X-192GB"),
        ("A10", "A10-24GB"),
        ("NVIDIA-A10G", "A10G-24GB"),
        ("RTX A6000", "RTX-A6000-48GB"),
        ("NVIDIA-A800-SXM4-80GB", "A800-SXM-80GB"),
        ("NVIDIA H20", "H20-SXM-96GB"),
        ("H20-3e", "H20-SXM-141GB"),
        ("A2", "A2-16GB"),
        ("3090 Ti", "RTX3090Ti-24GB"),
        ("3090", "RTX3090-24GB"),
        ("RTX 4060 Ti 16GB", "RTX4060Ti-16GB"),
        ("NVIDIA-GeForce-RTX-2080-Ti", "RTX2080Ti-11GB"),
        ("V100S", "V100S-PCIE-32GB"),
        ("RTX PRO 6000", "RTX-PRO-6000-Server-96GB"),
        ("RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Workstation-96GB"),
        ("RTX PRO 6000 Max-Q", "RTX-PRO-6000-MaxQ-96GB"),
        ("AMD Instinct MI250X", "MI250X-64GB"),
    ],
)
def test_people_nvidia_smi_and_node_labels_may_call_a_gpu_as_they_do(written: str, name: str) -> None:
    assert named_gpus.look_up(written).name == name


@pytest.mark.parametrize("gpu", catalog.gpus().values(), ids=lambda gpu: gpu.name)
def test_a_product_a_label_and_a_name_lead_to_their_own_gpu(gpu: GpuRecord) -> None:
    written = [name for name in (gpu.name, gpu.product, gpu.node_label) if name]

    assert [named_gpus.look_up(each) for each in written] == [gpu] * len(written)
    assert [named_gpus.tell_choice(each) for each in written] == [""] * len(written)


@pytest.mark.parametrize("alias", sorted({alias for gpu in catalog.gpus().values() for alias in gpu.aliases}))
def test_every_alias_leads_to_one_of_its_gpus(alias: str) -> None:
    assert named_gpus.look_up(alias) in catalog.by_alias(alias)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "nvidia",
        "RTX",
        "80GB",
        "L41",
        "RTX 6000",
        "H100-MIG-1g.20tb",
        "MIG 1g.10gb",
        "NVIDIA-H100-80GB-HBM3-SHARED",
        "RTX 4070 Ti SUPER",
        "H900",
        "x" * 500,
    ],
)
def test_a_name_that_says_no_model_or_another_thing_is_refused(written: str) -> None:
    with pytest.raises(SpecError):
        named_gpus.look_up(written)


def test_what_was_chosen_is_said_with_the_memory_where_that_differs() -> None:
    assert named_gpus.tell_choice("A100") == (
        "the GPU A100 is taken as A100-SXM-80GB, of 79.14 GiB; say which one it is if it is another: A100-SXM-40GB"
        " (39.39 GiB), A100-PCIE-40GB (39.38 GiB), A100-PCIE-80GB (79.14 GiB)"
    )
    assert named_gpus.tell_choice("A100-80GB") == (
        "the GPU A100-80GB is taken as A100-SXM-80GB; A100-PCIE-80GB has the same memory"
    )
    assert named_gpus.tell_choice("4090") == named_gpus.tell_choice("no-such-gpu") == ""
