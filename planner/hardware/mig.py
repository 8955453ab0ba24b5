"""MIG: the slices of a GPU, each a GPU of the catalog by itself, and the profile in what schedulers call one.

A slice is called `H100-SXM-80GB:1g.10gb`. `1g.10gb+me`, which has the media engines besides, is the same to a training;
a compute instance (`1c.3g.20gb`) has the memory of its GPU instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.units import MIB

if TYPE_CHECKING:
    from planner.hardware.gpu_records import GpuRecord


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One size of slice. `memory_mib` is what `nvidia-smi mig -lgip` lists, which is what CUDA reports of the slice: on
    an A100 of 80 GB 9.50 GiB and total_memory=9728MB, on an H100 9.75 GiB in both, on an H200 69.50 GiB and 74625056768
    bytes (spaces, huggingface's ZeroGPU), on a B200 44.25 GiB in both."""

    name: str
    memory_mib: int
    multiprocessors: int


def _profiles(*rows: tuple[str, float, int]) -> tuple[MigProfile, ...]:
    """Of GiB as -lgip prints them: with two decimals of eighths."""
    return tuple(MigProfile(name, int(round(gib * 8) * 128), count) for name, gib, count in rows)


_A100_40 = _profiles(
    ("1g.5gb", 4.75, 14), ("1g.10gb", 9.625, 14), ("2g.10gb", 9.625, 28), ("3g.20gb", 19.5, 42), ("4g.20gb", 19.5, 56),
    ("7g.40gb", 39.25, 98),
)  # fmt: skip
_A100_80 = _profiles(
    ("1g.10gb", 9.5, 14), ("1g.20gb", 19.5, 14), ("2g.20gb", 19.5, 28), ("3g.40gb", 39.25, 42), ("4g.40gb", 39.25, 56),
    ("7g.80gb", 79.0, 98),
)  # fmt: skip
_H100_PCIE = _profiles(
    ("1g.10gb", 9.75, 14), ("1g.20gb", 19.625, 14), ("2g.20gb", 19.625, 30), ("3g.40gb", 39.5, 46),
    ("4g.40gb", 39.5, 62), ("7g.80gb", 79.25, 114),
)  # fmt: skip
_H100_SXM = _profiles(
    ("1g.10gb", 9.75, 16), ("1g.20gb", 19.625, 26), ("2g.20gb", 19.625, 32), ("3g.40gb", 39.5, 60),
    ("4g.40gb", 39.5, 64), ("7g.80gb", 79.25, 132),
)  # fmt: skip
_PRO_6000 = _profiles(("1g.24gb", 23.625, 46), ("2g.48gb", 47.375, 94), ("4g.96gb", 95.0, 188))
_AS_NAMED = "NVIDIA/gpu-operator's assets/state-mig-manager/0400_configmap.yaml has the same profiles for both"

MIG_PROFILES: dict[str, tuple[tuple[MigProfile, ...], str]] = {
    "A30-PCIE-24GB": (
        _profiles(("1g.6gb", 5.8125, 14), ("2g.12gb", 11.6875, 28), ("4g.24gb", 23.4375, 56)),
        "nvidia-smi mig -lgip of NVIDIA A30, as fixtures of public MIG tools have it; older drivers 23.50 GiB for the "
        "whole",
    ),
    "A100-SXM-40GB": (
        _A100_40,
        "NVIDIA/go-nvml@2f9e261, pkg/nvml/mock/gpus/a100.go; other drivers 9.75, 19.62 and 39.50 GiB",
    ),
    "A100-PCIE-40GB": (_A100_40, "as A100-SXM-40GB"),
    "A100-SXM-80GB": (
        _A100_80,
        "nvidia-smi mig -lgip of A100 80GB in two public guides; get_device_properties of a 1g.10gb: 9728MB",
    ),
    "A100-PCIE-80GB": (_A100_80, "as A100-SXM-80GB"),
    "A800-SXM-80GB": (_A100_80, f"as A100-SXM-80GB: {_AS_NAMED}"),
    "A800-PCIE-80GB": (_A100_80, "as A800-SXM-80GB"),
    "H100-PCIE-80GB": (
        _H100_PCIE,
        "nvidia-smi mig -lgip of NVIDIA H100 PCIe, driver 570.169 (a public guide, 2025-08); nvidia-smi: 9984 MiB each",
    ),
    "H100-SXM-80GB": (
        _H100_SXM,
        "nvidia-smi mig -lgip of H100 80GB (jbarrow.ai/field_notes/nvidia-mig, 2026-06); an out-of-memory message of a "
        "1g.10gb says 9.75 GiB",
    ),
    "H100-NVL-94GB": (
        _profiles(
            ("1g.12gb", 10.625, 16), ("1g.24gb", 21.5, 26), ("2g.24gb", 21.5, 32), ("3g.47gb", 46.125, 60),
            ("4g.47gb", 46.125, 64), ("7g.94gb", 92.625, 132),
        ),
        "nvidia-smi mig -lgip of NVIDIA H100 NVL in OpenNebula's documentation (2025); driver 560.35 has 10.75, 21.62, "
        "46.38 and 93.12 GiB (NVIDIA/mig-parted#101)",
    ),
    "H800-SXM-80GB": (_H100_SXM, f"as H100-SXM-80GB: {_AS_NAMED}"),
    "H800-PCIE-80GB": (_H100_PCIE, f"as H100-PCIE-80GB: {_AS_NAMED}"),
    "H20-SXM-96GB": (
        _profiles(("1g.12gb", 11.75, 8), ("1g.24gb", 23.625, 8), ("2g.24gb", 23.625, 16), ("3g.48gb", 47.375, 32)),
        "node labels of NVIDIA H20 in a public guide (nvidia.com/mig-1g.12gb.memory 12032, 1g.24gb 24192, 3g.48gb "
        "48512); 2g.24gb has the memory of a 1g.24gb and twice its multiprocessors; of larger ones nothing was at hand",
    ),
    "GH200-96GB": (
        _profiles(
            ("1g.12gb", 11.0, 16), ("1g.24gb", 23.0, 26), ("2g.24gb", 23.0, 32), ("3g.48gb", 46.5, 60),
            ("4g.48gb", 46.5, 64), ("7g.96gb", 93.0, 132),
        ),
        "nvidia-smi mig -lgip of a GH200 480GB (kf-cuanschutz/NVIDIA_Grace_Hopper_benchmarking_logs_)",
    ),
    "H200-SXM-141GB": (
        _profiles(
            ("1g.18gb", 16.0, 16), ("1g.35gb", 32.25, 26), ("2g.35gb", 32.25, 32), ("3g.71gb", 69.5, 60),
            ("4g.71gb", 69.5, 64), ("7g.141gb", 140.0, 132),
        ),
        "NVIDIA/mig-parted#120: nvidia-smi mig -lgip of H200; other drivers 32.50 GiB for 2g.35gb",
    ),
    "B200-SXM-180GB": (
        _profiles(
            ("1g.23gb", 20.5, 18), ("1g.45gb", 44.25, 30), ("2g.45gb", 44.25, 36), ("3g.90gb", 88.5, 54),
            ("4g.90gb", 88.5, 72), ("7g.180gb", 177.0, 126),
        ),
        "NVIDIA/mig-parted#187: nvidia-smi mig -lgip of B200 up to 2g.45gb (a driver of January 2025: 22.00 GiB for "
        "1g.23gb, NVIDIA/mig-parted#166); of the larger ones no list was at hand: what their memory slices have in a "
        "2g.45gb, multiprocessors as in NVIDIA/go-nvml@2f9e261, pkg/nvml/mock/gpus/b200.go",
    ),
    "RTX-PRO-6000-Server-96GB": (
        _PRO_6000,
        "nvidia-smi mig -lgip of RTX PRO 6000 Blackwell in three public guides; on hosts of vGPUs 23.12 GiB",
    ),
    "RTX-PRO-6000-Workstation-96GB": (_PRO_6000, "as RTX-PRO-6000-Server-96GB"),
    "RTX-PRO-6000-MaxQ-96GB": (_PRO_6000, "as RTX-PRO-6000-Server-96GB"),
}  # fmt: skip
"""By the GPU's name in the catalog, with the source. Fractions of memory and multiprocessors: NVIDIA's MIG user guide,
docs.nvidia.com/datacenter/tesla/mig-user-guide, supported profiles. Where drivers differ the least is taken."""

SEPARATOR = ":"
_PROFILE = re.compile(r"(?:[1-7]c\.)?([1-7]g)\.([0-9]{1,3}gb)(?:[.+-][a-z.]+)?", re.IGNORECASE)
_WITHIN = re.compile(rf"(?:^|[^0-9a-z.])({_PROFILE.pattern})(?![0-9a-z])", re.IGNORECASE)


def profile_in(text: str) -> str:
    """The profile within a text, as `1g.10gb`: in `nvidia.com/mig-1g.10gb.me`, `a100_1g.5gb`, `H100:1g.10gb`; empty
    where there is none."""
    match = _WITHIN.search(text[:200])
    return f"{match[2]}.{match[3]}".casefold() if match else ""


def without_profile(text: str) -> str:
    """The text before a profile: `a100` of `a100_1g.5gb`, `NVIDIA-A30` of `NVIDIA-A30-MIG-1g.6gb`; all of it where
    there is none."""
    match = _WITHIN.search(text[:200])
    return re.sub(r"(?i)[\s:_/-]*(\bmig)?[\s:_/-]*$", "", text[: match.start()]) if match else text


def slices_of(gpu: GpuRecord) -> Iterator[GpuRecord]:
    """The slices of a GPU, the smallest first. None has more memory than CUDA reports of the whole."""
    profiles, source = MIG_PROFILES.get(gpu.name, ((), ""))
    for profile in profiles:
        yield replace(
            gpu,
            name=f"{gpu.name}{SEPARATOR}{profile.name}",
            total_bytes=min(profile.memory_mib * MIB, gpu.total_bytes),
            provenance=source,
            multiprocessors=profile.multiprocessors,
            product=f"{gpu.product} MIG {profile.name}",
            aliases=(),
            context=None,
            communicators=(),
            whole=gpu.name,
            slice=profile.name,
        )


def choose_slice(slices: Iterable[GpuRecord], profile: str) -> GpuRecord | None:
    """The slice of that profile. Drivers have called the same one `3g.39gb` and `3g.40gb` (NVIDIA/mig-parted#31): one
    of as many compute slices whose name differs by 1 GB is meant too."""
    compute, _, memory = profile.partition(".")
    near = [
        (abs(int(gpu.slice.partition(".")[2][:-2]) - int(memory[:-2])), gpu.total_bytes, gpu)
        for gpu in slices
        if gpu.slice.startswith(f"{compute}.")
    ]
    if not near:
        return None
    difference, _, closest = min(near, key=lambda item: item[:2])
    return closest if difference <= 1 else None
