"""What a GPU is, and its bytes as the driver counts them (NVML), asked through its C library: no package is needed.

Source: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3 (driver 510 and up).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

_NOT_AVAILABLE = (1 << 64) - 1
_SUCCESS, _TOO_SMALL = 0, 7


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def process_bytes(uuid: str) -> int:
    """Bytes that this process holds on the GPU of that uuid; 0 where the driver does not say."""
    library, handle = _handle(uuid)
    if library is None:
        return 0
    count = ctypes.c_uint(0)
    processes = (_Process * 1)()
    code = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    if code == _TOO_SMALL:
        count = ctypes.c_uint(count.value + 8)
        processes = (_Process * count.value)()
        code = library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
    if code != _SUCCESS:
        return 0
    ours = _own_ids()
    own = (held for held in processes[: count.value] if held.pid in ours and held.used != _NOT_AVAILABLE)
    return next((int(held.used) for held in own), 0)


def describe_gpu(torch: Any, device: int) -> dict[str, Any]:
    """The fields of `DeviceFacts`; the uuid as the driver's tools spell it."""
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", ""))
    return {
        "kind": "cuda",
        "name": properties.name,
        "uuid": uuid if uuid.startswith(("GPU-", "MIG-")) or not uuid else f"GPU-{uuid}",
        "total_bytes": properties.total_memory,
        "arch": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


class Driver:
    """Counts what a device holds for this process: as the driver tells by process, or all that is used of the device
    where it does not and this process `is_alone`; else 0."""

    def __init__(self, torch: Any, *, is_alone: bool = False) -> None:
        self._torch, self.is_alone = torch, is_alone
        self.counted_by = ""
        """process, device, or nothing where nothing was counted."""

    def read_bytes(self, device: int) -> int:
        uuid = describe_gpu(self._torch, device)["uuid"]
        own = process_bytes(uuid) if uuid and self.counted_by != "device" else 0
        self.counted_by = self.counted_by or ("process" if own else "device" if self.is_alone else "")
        if self.counted_by != "device":
            return own
        free, total = self._torch.cuda.mem_get_info(device)
        return int(total - free)


def device_count() -> int:
    """How many GPUs this machine has, as the driver says; 0 where there is no driver."""
    library = _library()
    count = ctypes.c_uint(0)
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
        return 0
    return int(count.value)


def driver_version() -> str:
    """The driver's version; empty where there is none."""
    library = _library()
    if library is None:
        return ""
    text = ctypes.create_string_buffer(80)
    return text.value.decode() if library.nvmlSystemGetDriverVersion(text, 80) == _SUCCESS else ""


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    is_whole = hasattr(library, "nvmlDeviceGetCount_v2")  # that of a process with a GPU on paper answers torch alone
    return library if is_whole and library.nvmlInit_v2() == _SUCCESS else None


@cache
def _handle(uuid: str) -> tuple[Any, Any]:
    library = _library()
    if library is None:
        return None, None
    handle = ctypes.c_void_p()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) != _SUCCESS:
        return None, None
    return library, handle


def _own_ids() -> set[int]:
    """This process's number in every namespace: inside a container the driver may speak of the host's."""
    ids = {os.getpid()}
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("NSpid:"):
                ids.update(int(number) for number in line.split()[1:])
    return ids
