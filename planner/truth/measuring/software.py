"""What runs here: versions and the device, as far as they decide memory."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform

import torch

from planner.truth.measuring import nvml
from planner.truth.measuring.measurement_lines import DeviceFacts


def software() -> dict[str, str]:
    """Versions by name; a part that is not there is left out."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "driver": nvml.driver_version()}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.cuda and torch.backends.cudnn.is_available():
        versions["cudnn"] = str(torch.backends.cudnn.version())
    if torch.version.cuda and torch.distributed.is_nccl_available():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["transformers"] = importlib.metadata.version("transformers")
    return {name: version for name, version in versions.items() if version}


def device_facts(device: torch.device) -> DeviceFacts:
    if device.type != "cuda":
        return DeviceFacts(kind=device.type, name=platform.machine())
    return DeviceFacts(
        **nvml.describe_gpu(torch, torch.cuda.current_device() if device.index is None else device.index)
    )


def allocator_conf() -> str:
    """The allocator's settings of this process, as they were written."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
