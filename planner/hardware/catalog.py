"""Finds the record of a GPU by what jobs, schedulers and clusters call it, and how fast it computes and talks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from planner.hardware import mig
from planner.hardware.gpu_records import GpuRecord
from planner.hardware.gpus import GPUS

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""The node label that names a GPU; its values are `GpuRecord.node_label`."""


@cache
def gpus() -> dict[str, GpuRecord]:
    """Every whole GPU by its name."""
    return {gpu.name: gpu for gpu in GPUS}


@cache
def slices() -> dict[str, tuple[GpuRecord, ...]]:
    """The MIG slices of every GPU that has any, the smallest first, by the GPU's name."""
    return {gpu.name: parts for gpu in GPUS if (parts := tuple(mig.slices_of(gpu)))}


@cache
def digest() -> str:
    """Of all records: another catalog makes other plans."""
    return hashlib.sha256(repr((GPUS, slices())).encode()).hexdigest()[:12]


def names() -> list[str]:
    """The names of all whole GPUs."""
    return list(gpus())


@cache
def _by_folded_name() -> dict[str, GpuRecord]:
    return {gpu.name.casefold(): gpu for gpu in (*GPUS, *(part for parts in slices().values() for part in parts))}


def by_name(name: str) -> GpuRecord | None:
    """The GPU of that name, or the MIG slice, in letters of either case."""
    return _by_folded_name().get(name.casefold())


def slice_of(gpu: GpuRecord, profile: str) -> GpuRecord | None:
    """The slice of this profile (`1g.10gb`) of a GPU, or of the GPU that a slice is of; None where it has none."""
    return mig.choose_slice(slices().get(gpu.whole or gpu.name, ()), profile)


def parts_with(part: GpuRecord, least_bytes: float) -> Iterator[GpuRecord]:
    """Of the GPU that a slice is of: its slices and all of it that have so many bytes, the smallest first."""
    parts = (*slices()[part.whole], gpus()[part.whole])
    yield from sorted((one for one in parts if one.total_bytes >= least_bytes), key=lambda one: one.total_bytes)


def by_alias(alias: str) -> list[GpuRecord]:
    """The GPUs that a scheduler may mean by a name such as `H100` or `h100`."""
    return [gpu for gpu in GPUS if alias.casefold() in (known.casefold() for known in gpu.aliases)]


def by_any_name(name: str) -> list[GpuRecord]:
    """The GPUs that people may mean by a name: a record's own, an alias, a product as nvidia-smi and node labels write
    it, or some of their words that say the model (`h100 sxm`, `A100 80GB`, `GeForce RTX 4090`), whatever stands between
    the words. Several, where the words leave it open; none, where a word is unknown or no model is said. With a MIG
    profile in it (`H100:1g.10gb`, `A100-SXM4-40GB MIG 1g.5gb`) the slices of those GPUs that have it; every GPU's,
    where there is nothing else.
    """
    if profile := mig.profile_in(name):
        whole = mig.without_profile(name)
        of = by_any_name(whole) if whole.strip() else GPUS
        parts = [part for gpu in of if (part := slice_of(gpu, profile)) is not None]
        return [part for part in parts if part.slice == profile] or parts
    joined = _joined(name)
    if not joined:
        return []
    if exact := [gpu for gpu in GPUS if joined in (_joined(gpu.name), _joined(gpu.product))]:
        return exact
    if called := [gpu for gpu in GPUS if joined in map(_joined, gpu.aliases)]:
        return called
    words, matches = _words(name), []
    for gpu in GPUS:
        models = [_words(model) for model in (gpu.model, *gpu.aliases)]
        if words <= _words(gpu.name).union(_words(gpu.product), *models) and any(model <= words for model in models):
            matches.append(gpu)
    return matches


def by_node_label(value: str) -> GpuRecord | None:
    """The GPU of nodes with this value of `nvidia.com/gpu.product`.

    `-MIG-1g.10gb` behind it makes a slice of it, as GPU feature discovery labels nodes of one kind of slices. None for
    one that is shared in time (`-SHARED`): what a process may use of it is not the product's to say.
    """
    profile, folded = mig.profile_in(value), mig.without_profile(value).casefold()
    whole = next((gpu for gpu in GPUS if gpu.node_label and gpu.node_label.casefold() == folded), None)
    return slice_of(whole, profile) if whole is not None and profile else whole


def is_model(name: str, model: str) -> bool:
    """Whether the GPU of that name is of a model; a GPU that has no record is if its name begins with the model's."""
    known = by_name(name)
    return known.model == model if known else name == model or name.startswith(f"{model}-")


_MAKERS = frozenset({"nvidia", "amd", "geforce", "tesla", "instinct"})
"""Words of products that no one misses."""
_SOCKETS = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "40g": "40gb", "80g": "80gb", "16g": "16gb"}


def _words(name: str) -> frozenset[str]:
    words = re.split(r"[\s_-]+", name.casefold().strip())
    return frozenset(_SOCKETS.get(word, word) for word in words) - _MAKERS - {""}


def _joined(name: str) -> str:
    return "".join(word for word in re.split(r"[\s_-]+", name.casefold().strip()) if word not in _MAKERS)


_PCIE_3, _PCIE_4, _PCIE_5 = 16, 32, 64
"""PCIe x16 in GB/s each way (PCI-SIG: 8, 16, 32 GT/s a lane)."""


# They rank layouts against each other; no time is ever promised from them. A GPU's record in `gpus.py` names the
# model.
@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Peaks of one GPU, decimal units."""

    teraflops: float
    """Dense products of bfloat16 (float16 before Ampere) with sums in float32, 10^12 operations a second."""
    memory_gb_s: float
    """Its own memory, 10^9 bytes a second."""
    link_gb_s: float
    """To the GPUs of its node, each way: half of what data sheets call the total of NVLink; PCIe where it has none."""
    host_gb_s: float
    """To the host, each way."""
    source: str


SPEEDS = {
    "P100-PCIE-16GB": Speed(teraflops=9.3, memory_gb_s=732, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                            source="NVIDIA P100 data sheet (2016): single precision, in which its products sum"),
    "P100-SXM2-16GB": Speed(teraflops=10.6, memory_gb_s=732, link_gb_s=80, host_gb_s=_PCIE_3,
                            source="NVIDIA P100 data sheet (2016): single precision, in which its products sum; "
                                   "NVLink of 160 GB/s"),
    "P40-24GB": Speed(teraflops=11.8, memory_gb_s=346, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                      source="NVIDIA P40 data sheet (2017): single precision, in which its products sum"),
    "GTX1080-8GB": Speed(teraflops=8.9, memory_gb_s=320, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                         source="NVIDIA GeForce GTX 1080 whitepaper (2016): single precision, at 1733 MHz"),
    "GTX1080Ti-11GB": Speed(teraflops=11.3, memory_gb_s=484, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                            source="NVIDIA's page of the GTX 1080 Ti (2017): single precision, at 1582 MHz"),
    "TITAN-Xp-12GB": Speed(teraflops=12.1, memory_gb_s=548, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                           source="NVIDIA's page of the TITAN Xp (2017): single precision, at 1582 MHz"),
    "V100-SXM2-16GB": Speed(teraflops=125, memory_gb_s=900, link_gb_s=150, host_gb_s=_PCIE_3,
                            source="NVIDIA V100 data sheet (2020): SXM2"),
    "V100-PCIE-16GB": Speed(teraflops=112, memory_gb_s=900, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                            source="NVIDIA V100 data sheet (2020): PCIe"),
    "V100S-PCIE-32GB": Speed(teraflops=130, memory_gb_s=1134, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                             source="NVIDIA V100 data sheet (2020): V100S"),
    "TITAN-V-12GB": Speed(teraflops=110, memory_gb_s=653, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                          source="NVIDIA's page of the TITAN V (2017)"),
    "T4-16GB": Speed(teraflops=65, memory_gb_s=320, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                     source="NVIDIA T4 data sheet (2019)"),
    "A2-16GB": Speed(teraflops=18.1, memory_gb_s=200, link_gb_s=_PCIE_4 / 2, host_gb_s=_PCIE_4 / 2,
                     source="TechPowerUp: 1770 MHz, eight lanes of PCIe 4; without sparsity (NVIDIA A2 data sheet, "
                            "2021: 18)"),
    "A16-16GB": Speed(teraflops=18.0, memory_gb_s=200, link_gb_s=_PCIE_4 / 4, host_gb_s=_PCIE_4 / 4,
                      source="NVIDIA's page of the A16, one of four GPUs on 16 lanes; an A2's chip at 1755 MHz "
                             "(TechPowerUp)"),
    "A10-24GB": Speed(teraflops=125, memory_gb_s=600, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                      source="NVIDIA A10 data sheet (2021), without sparsity"),
    "A10G-24GB": Speed(teraflops=70, memory_gb_s=600, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                       source="NVIDIA A10G data sheet as AWS has it (2021)"),
    "L4-24GB": Speed(teraflops=121, memory_gb_s=300, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                     source="NVIDIA L4 data sheet (2023), half of its figure with sparsity"),
    "L20-48GB": Speed(teraflops=119.5, memory_gb_s=864, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                      source="NVIDIA L20 as resellers' data sheets have it (2024), without sparsity: torch.matmul "
                             "reaches 114"),
    "L40-48GB": Speed(teraflops=181, memory_gb_s=864, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                      source="NVIDIA L40 data sheet (2023), without sparsity"),
    "L40S-48GB": Speed(teraflops=362, memory_gb_s=864, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                       source="NVIDIA L40S data sheet (2023), without sparsity"),
    "A40-48GB": Speed(teraflops=149.7, memory_gb_s=696, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                      source="NVIDIA A40 data sheet (2021), without sparsity and bridge"),
    "A30-PCIE-24GB": Speed(teraflops=165, memory_gb_s=933, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                           source="NVIDIA A30 data sheet (2022), without sparsity and bridge"),
    "RTX-A4000-16GB": Speed(teraflops=76.7, memory_gb_s=448, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA RTX A4000 data sheet (2021), half of its figure with sparsity"),
    "RTX-A5000-24GB": Speed(teraflops=111.1, memory_gb_s=768, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA RTX A5000 data sheet (2021), half of its figure with sparsity, without "
                                   "bridge"),
    "RTX-A5500-24GB": Speed(teraflops=136.4, memory_gb_s=768, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA RTX A5500 data sheet (2022), half of its figure with sparsity, without "
                                   "bridge"),
    "RTX-A6000-48GB": Speed(teraflops=154.8, memory_gb_s=768, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA RTX A6000 data sheet (2020), half of its figure with sparsity, without "
                                   "bridge"),
    "RTX2080Ti-11GB": Speed(teraflops=53.8, memory_gb_s=616, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                            source="NVIDIA Turing architecture whitepaper (2018), FP32 accumulate, reference card "
                                   "without bridge"),
    "Quadro-RTX-6000-24GB": Speed(teraflops=130.5, memory_gb_s=672, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                                  source="NVIDIA Turing architecture whitepaper (2018), Quadro RTX 6000, without "
                                         "bridge"),
    "Quadro-RTX-8000-48GB": Speed(teraflops=130.5, memory_gb_s=672, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                                  source="NVIDIA Quadro RTX 8000 data sheet (2019), without bridge"),
    "TITAN-RTX-24GB": Speed(teraflops=130.5, memory_gb_s=672, link_gb_s=_PCIE_3, host_gb_s=_PCIE_3,
                            source="NVIDIA's page of the TITAN RTX (2018), at 1770 MHz, without bridge"),
    "RTX3060-12GB": Speed(teraflops=25.5, memory_gb_s=360, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                          source="NVIDIA GA102 architecture whitepaper (2020), FP32 accumulate, at 1777 MHz "
                                 "(TechPowerUp)"),
    "RTX3080-10GB": Speed(teraflops=59.5, memory_gb_s=760, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                          source="NVIDIA GA102 architecture whitepaper (2020), FP32 accumulate"),
    "RTX3090-24GB": Speed(teraflops=71, memory_gb_s=936, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                          source="NVIDIA GA102 architecture whitepaper (2020), FP32 accumulate"),
    "RTX3090Ti-24GB": Speed(teraflops=80, memory_gb_s=1008, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA GA102 architecture whitepaper (2020), FP32 accumulate, at 1860 MHz "
                                   "(TechPowerUp), without bridge"),
    "RTX4060Ti-16GB": Speed(teraflops=44.1, memory_gb_s=288, link_gb_s=_PCIE_4 / 2, host_gb_s=_PCIE_4 / 2,
                            source="NVIDIA Ada architecture whitepaper (2022), FP32 accumulate, at 2535 MHz and with "
                                   "eight lanes (TechPowerUp)"),
    "RTX4070Ti-12GB": Speed(teraflops=80.2, memory_gb_s=504, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA Ada architecture whitepaper (2022), FP32 accumulate, at 2610 MHz "
                                   "(TechPowerUp)"),
    "RTX4090-24GB": Speed(teraflops=165.2, memory_gb_s=1008, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                          source="NVIDIA Ada architecture whitepaper (2022), FP32 accumulate"),
    "RTX6000-Ada-48GB": Speed(teraflops=364.2, memory_gb_s=960, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                              source="NVIDIA Ada architecture whitepaper (2022), RTX 6000 Ada"),
    "RTX5090-32GB": Speed(teraflops=209.5, memory_gb_s=1792, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                          source="NVIDIA Blackwell RTX architecture whitepaper (2025), FP32 accumulate"),
    "RTX-PRO-6000-Server-96GB": Speed(teraflops=468, memory_gb_s=1597, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                                      source="NVIDIA's page of RTX PRO 6000 Server Edition (2026): twice the 234 of "
                                             "TF32; its 1,000 of BF16 is sparse and rounded"),
    "RTX-PRO-6000-Workstation-96GB": Speed(teraflops=503.8, memory_gb_s=1792, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                                           source="NVIDIA RTX Blackwell PRO architecture whitepaper (2025), FP32 "
                                                  "accumulate"),
    "RTX-PRO-6000-MaxQ-96GB": Speed(teraflops=438.9, memory_gb_s=1792, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                                    source="NVIDIA RTX PRO 6000 Max-Q data sheet (2025): an 8th of its FP4 with "
                                           "sparsity"),
    "A100-SXM-40GB": Speed(teraflops=312, memory_gb_s=1555, link_gb_s=300, host_gb_s=_PCIE_4,
                           source="NVIDIA A100 data sheet (2021)"),
    "A100-PCIE-40GB": Speed(teraflops=312, memory_gb_s=1555, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA A100 data sheet (2021), without bridge"),
    "A100-SXM-80GB": Speed(teraflops=312, memory_gb_s=2039, link_gb_s=300, host_gb_s=_PCIE_4,
                           source="NVIDIA A100 data sheet (2021)"),
    "A100-PCIE-80GB": Speed(teraflops=312, memory_gb_s=1935, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="NVIDIA A100 data sheet (2021), without bridge"),
    "A800-SXM-80GB": Speed(teraflops=312, memory_gb_s=2039, link_gb_s=200, host_gb_s=_PCIE_4,
                           source="Lenovo's guide to the A800 (LP1813): A100's with NVLink of 400 GB/s"),
    "A800-PCIE-80GB": Speed(teraflops=312, memory_gb_s=1935, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                            source="Lenovo's guide to the A800 (LP1813), without bridge"),
    "H100-PCIE-80GB": Speed(teraflops=756, memory_gb_s=2000, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                            source="NVIDIA H100 data sheet (2023), half of its figure with sparsity, without bridge"),
    "H100-SXM-80GB": Speed(teraflops=989.4, memory_gb_s=3350, link_gb_s=450, host_gb_s=_PCIE_5,
                           source="NVIDIA H100 architecture whitepaper (2023), without sparsity"),
    "H100-NVL-94GB": Speed(teraflops=835.5, memory_gb_s=3900, link_gb_s=300, host_gb_s=_PCIE_5,
                           source="NVIDIA H100 data sheet (2024), half of its figure with sparsity"),
    "H800-SXM-80GB": Speed(teraflops=989.4, memory_gb_s=3350, link_gb_s=200, host_gb_s=_PCIE_5,
                           source="NVIDIA H800 data sheet (2023), half of its figure with sparsity: H100's with "
                                  "NVLink of 400 GB/s"),
    "H800-PCIE-80GB": Speed(teraflops=756, memory_gb_s=2000, link_gb_s=_PCIE_5, host_gb_s=_PCIE_5,
                            source="as H100-PCIE-80GB: TechPowerUp has one clock and memory for both; without bridge"),
    "H20-SXM-96GB": Speed(teraflops=148, memory_gb_s=4000, link_gb_s=450, host_gb_s=_PCIE_5,
                          source="NVIDIA HGX H20 as resellers' data sheets have it (2023), without sparsity"),
    "H20-SXM-141GB": Speed(teraflops=148, memory_gb_s=4800, link_gb_s=450, host_gb_s=_PCIE_5,
                           source="as H20-SXM-96GB; an H200's memory (citsjtu2020/LLM-Prof hardware_spec.md)"),
    "H200-SXM-141GB": Speed(teraflops=989.4, memory_gb_s=4800, link_gb_s=450, host_gb_s=_PCIE_5,
                            source="NVIDIA H200 data sheet (2024), half of its figure with sparsity"),
    "B200-SXM-180GB": Speed(teraflops=2250, memory_gb_s=7700, link_gb_s=900, host_gb_s=_PCIE_5,
                            source="NVIDIA HGX B200 data sheet (2024), half of its figure with sparsity"),
    "B300-SXM-288GB": Speed(teraflops=2250, memory_gb_s=7700, link_gb_s=900, host_gb_s=_PCIE_5,
                            source="NVIDIA Blackwell architecture technical brief (2025), HGX B300, half of its "
                                   "figure with sparsity; hosts have PCIe 5"),
    "GH200-96GB": Speed(teraflops=989.4, memory_gb_s=4000, link_gb_s=450, host_gb_s=450,
                        source="NVIDIA GH200 data sheet (2023), half of its figure with sparsity, NVLink-C2C"),
    "GH200-144GB": Speed(teraflops=989.4, memory_gb_s=4900, link_gb_s=450, host_gb_s=450,
                         source="NVIDIA GH200 data sheet (2023), HBM3e, half of its figure with sparsity, NVLink-C2C"),
    "GB200-186GB": Speed(teraflops=2500, memory_gb_s=8000, link_gb_s=900, host_gb_s=450,
                         source="NVIDIA GB200 NVL72 data sheet (2024), a 72nd, half of its figure with sparsity"),
    "MI210-64GB": Speed(teraflops=181, memory_gb_s=1638, link_gb_s=_PCIE_4, host_gb_s=_PCIE_4,
                        source="AMD Instinct MI210 data sheet (2022), without bridge"),
    "MI250X-64GB": Speed(teraflops=191.5, memory_gb_s=1638, link_gb_s=200, host_gb_s=_PCIE_4,
                         source="AMD Instinct MI250X data sheet (2021), half of a module; four links of 50 GB/s to "
                                "its other half (ROCm's docs)"),
    "MI300X-192GB": Speed(teraflops=1307.4, memory_gb_s=5300, link_gb_s=448, host_gb_s=_PCIE_5,
                          source="AMD Instinct MI300X data sheet (2023)"),
    "MI325X-256GB": Speed(teraflops=1307.4, memory_gb_s=6000, link_gb_s=448, host_gb_s=_PCIE_5,
                          source="AMD Instinct MI325X data sheet (2024), without sparsity; seven links of 64 GB/s"),
}  # fmt: skip
"""By the names of the catalog."""

_SAME_SPEED = {"V100-SXM2-32GB": "V100-SXM2-16GB", "V100-PCIE-32GB": "V100-PCIE-16GB"}


def speed_of(gpu: GpuRecord | str) -> Speed | None:
    """The peaks of a GPU of the catalog; None for one that a spec describes by its figures."""
    name = gpu.name if isinstance(gpu, GpuRecord) else gpu
    record = by_name(name)
    return None if record is None else SPEEDS.get(_SAME_SPEED.get(record.name, record.name))


def network_gb_s(gpu: str) -> float:
    """Between nodes, for each GPU and way: what is usual beside such GPUs (DGX H100 and A100 user guides)."""
    record, speed = by_name(gpu), speed_of(gpu)
    if record is None or speed is None or speed.link_gb_s < 100:
        return 12.5
    if record.arch in ("sm_90", "sm_100", "sm_103", "gfx942"):
        return 50.0
    return 25.0 if record.arch in ("sm_80", "gfx90a") else 12.5
