"""The CUDA runtime on paper: stand-ins for the libraries of CUDA that a CUDA build of torch is linked with.

A process that finds them first (`LD_PRELOAD`: torch's libraries have an RPATH, which `LD_LIBRARY_PATH` does not beat)
runs torch's own CUDA code without a GPU: memory is address space, launches do nothing.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from planner.cuda_on_paper.libraries import COMPILED_FOR, PRELOAD, build, find_torch
from planner.errors import TraceError
from planner.hardware.architectures import ARCHITECTURES, find_architecture
from planner.runtime.environments.torch_environments import CUDNN_FOLDER
from planner.runtime.fork_server import ForkServer
from planner.runtime.user_cache import user_cache
from planner.units import KIB

_CUDNN_WITHOUT_GPU = (9, 8)
"""The first that is told properties of a device instead of a handle."""
_ON, _DEVICE = "PAPER_CUDA", "PAPER_DEVICE"
"""Variables of processes whose torch finds CUDA on paper: the folder of the libraries, the GPU's description."""
_CUDNN, _OTHER_CUDNN = "PAPER_CUDNN", "PAPER_OTHER_CUDNN"
"""The cuDNN that is asked; the versions of torch's own and of that one, where they are not the same."""
_COMPILED_FOR = "PAPER_COMPILED_FOR"
"""Another: for which architectures torch was compiled (`80 90`)."""

_MOST_GPUS = 120
"""Of a node that torch can count (c10/cuda/CUDAMacros.h, C10_COMPILE_TIME_MAX_GPUS)."""
_FOR_OTHERS = "sm_80"
"""Whose kernels GPUs of other makers are planned with: attention of torch's own, as ROCm builds have, not cuDNN's."""
_BLAS = "CUBLAS_WORKSPACE_CONFIG"
_ROOMY_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class PaperGpu:
    """What the runtime answers for, and how many of them there are."""

    name: str
    arch: str
    total_bytes: int
    count: int = 1


if _ON not in os.environ:  # it is that of the process that started this one (`take_gpu`)
    os.environ.pop(_DEVICE, None)
_taken: dict[str, str] = {}
"""Variables of the GPU that this process has."""


def load() -> None:
    """Torch, which this process has not imported yet, finds CUDA on paper. Raises what :func:`start_variables` does."""
    if os.environ.get(_ON):  # it was started with these libraries
        return
    variables = start_variables()
    libraries = variables.pop("LD_PRELOAD").split(":")
    del variables[_ON]  # processes that this one starts have loaded nothing
    os.environ.pop(_OTHER_CUDNN, None)  # of a process with another torch that has started this one
    os.environ.update(variables)
    # Torch's loader takes a library that is in the process already, by its name, before it looks where RPATH says.
    for library in libraries:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def start_variables() -> dict[str, str]:
    """Of the environment with which a process is started in which torch finds CUDA on paper.

    Raises TraceError where there is no compiler, or torch is not a CUDA build.
    """
    torch_folder = find_torch()
    folder = build(torch_folder)
    return {
        "LD_PRELOAD": (folder / PRELOAD).read_text(encoding="utf-8"),
        "TRITON_LIBCUDA_PATH": str(folder),
        _ON: str(folder),
        _COMPILED_FOR: (folder / COMPILED_FOR).read_text(encoding="utf-8"),
        **_find_cudnn(torch_folder),
    }


def _find_cudnn(torch_folder: Path) -> dict[str, str]:
    """Variables with the cuDNN that is asked: torch's own, or if that needs a GPU, the oldest of planner's own
    environments that does not."""
    own = torch_folder.parent / "nvidia/cudnn"
    if not own.is_dir():
        return {}
    folders = ("lib/python*/site-packages", CUDNN_FOLDER)
    others = (path for folder in folders for path in user_cache().glob(f"environments/*/{folder}/nvidia/cudnn"))
    able = {path: version for path in (own, *others) if (version := _read_version(path)) >= _CUDNN_WITHOUT_GPU}
    asked = own if own in able or not able else min(able, key=lambda path: able[path])
    variables = {_CUDNN: str(asked / "lib/libcudnn.so.9")}
    if asked != own:
        versions = [".".join(map(str, _read_version(path))) for path in (own, asked)]
        variables[_OTHER_CUDNN] = " ".join(versions)
    return variables


def _read_version(cudnn: Path) -> tuple[int, ...]:
    text = (cudnn / "include/cudnn_version.h").read_text(encoding="utf-8")
    return tuple(int(number) for number in re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", text))


def other_cudnn() -> tuple[str, ...]:
    """The versions of torch's own cuDNN and of the one that is asked in its place; nothing where that is the same."""
    return tuple(os.environ.get(_OTHER_CUDNN, "").split())


def gpu_variables(gpu: PaperGpu) -> dict[str, str]:
    """Of the environment of a process that finds this GPU on paper, before its first call of CUDA."""
    variables = {_DEVICE: json.dumps(_describe(gpu)), "PAPER_GPUS": str(min(gpu.count, _MOST_GPUS))}
    size = find_architecture(gpu.arch).hipblas_workspace_bytes
    if size and _BLAS not in os.environ:
        variables[_BLAS] = f":{size // KIB}:1"
    return variables


def start_server(preload: str) -> ForkServer:
    """A fork server whose children find what :func:`start_variables` says, and raises what that raises."""
    return ForkServer(preload, environment=start_variables())


@cache
def lasting_server(preload: str) -> ForkServer:
    """As :func:`start_server`; one for this process, which ends with it."""
    started = start_server(preload)
    atexit.register(started.close)
    return started


def has_gpu() -> bool:
    """Whether it is said which GPU this process finds on paper."""
    return bool(_taken) or _DEVICE in os.environ


def describe_device() -> dict[str, Any]:
    """The GPU that this process finds on paper (:func:`_describe`)."""
    description: dict[str, Any] = json.loads(_taken.get(_DEVICE) or os.environ[_DEVICE])
    return description


def can_take(target: str) -> bool:
    """Whether this process can trace what runs with the kernels of `target`: its GPU, if it has one, has them too.

    Raises TraceError for an unknown architecture.
    """
    find_architecture(target)
    return not has_gpu() or _kernel_properties(describe_device()) == _kernel_properties(
        _describe(PaperGpu("", target, 0))
    )


def _kernel_properties(description: Mapping[str, object]) -> dict[str, object]:
    """What of a GPU decides which kernels run; code that asks for more has a process of its own."""
    return {key: value for key, value in description.items() if key not in ("deviceName", "totalGlobalMem")}


def take_gpu(gpu: PaperGpu) -> None:
    """This process finds that GPU on paper, unless it has one already.

    Raises TraceError where that one has other kernels.
    """
    if not can_take(gpu.arch):
        raise TraceError(
            f"this process has another GPU on paper than one with the kernels of {gpu.arch}",
            allowed="one architecture in a process",
        )
    if not has_gpu():
        _taken.update(gpu_variables(gpu))
    for name, value in _taken.items():
        os.putenv(name, value)  # for CUDA's libraries in this process: those that it starts have GPUs of their own


def take_any_gpu(target: str) -> None:
    """As :func:`take_gpu`, where nobody asks for more than the kernels of `target`: it has room for everything."""
    take_gpu(PaperGpu(target, target, _ROOMY_BYTES))


def describe_other_kernels(arch: str) -> str:
    """A sentence, where the torch of this process has no kernels for GPUs of this architecture; else nothing."""
    name = arch.partition("/")[0]
    if not _is_nvidia(name):
        return (
            f"The installed torch has no kernels for {name}, which ROCm's torch has: CUDA's for {_FOR_OTHERS} are"
            " planned in their place."
        )
    major, minor = ARCHITECTURES[name].capability
    compiled_for = os.environ.get(_COMPILED_FOR, "").split()
    # The kernels for an older minor version run on a newer one.
    if any(f"{major}{older}" in compiled_for for older in range(minor + 1)) or not compiled_for:
        return ""
    return (
        f"The installed torch has no kernels for {name} (it has them for sm_{', sm_'.join(compiled_for)}): those of"
        " another architecture are planned, and the job needs a torch that was built for its GPU."
    )


def _is_nvidia(arch: str) -> bool:
    return arch.startswith("sm_")


def _describe(gpu: PaperGpu) -> dict[str, object]:
    """As NVIDIA documents a device for cuDNN's `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`; clocks and the bus are an
    H100's for every GPU."""
    arch, _, multiprocessors = gpu.arch.partition("/")  # fewer on a slice of a GPU
    known = ARCHITECTURES[arch]
    major, minor = ARCHITECTURES[arch if _is_nvidia(arch) else _FOR_OTHERS].capability
    return {
        "cudaDeviceId": 0, "deviceId": 0, "deviceVer": 100 * major + 10 * minor, "driverVer": 13000,
        "cudaDriverVersion": 13000, "totalGlobalMem": gpu.total_bytes, "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
        "multiProcessorCount": int(multiprocessors or known.multiprocessors), "smCountOrigin": 0,
        "warpSize": known.warp_size, "maxSharedMemoryPerBlock": 48 * KIB,
        "maxSharedMemoryPerBlockOptin": known.shared_memory_per_block_bytes, "oversizedSharedMemoryPerBlock": 0,
        "reservedSharedMemoryPerBlock": KIB, "maxRegistersPerSM": known.registers_per_multiprocessor,
        "maxCtasPerSM": 32 if major in (8, 9, 10) and minor == 0 else 24 if major == 8 else 16,
        "maxThreadsPerBlock": 1024, "maxThreadsPerSM": known.threads_per_multiprocessor, "pciDeviceId": 0,
        "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
        "memoryBusWidth": 5120, "l2CacheSize": known.l2_cache_bytes, "deviceName": gpu.name,
    }  # fmt: skip
