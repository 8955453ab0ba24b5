"""What a log can say of running out of memory, on a GPU or on a host, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """The forms in which being out of GPU memory has been said; the value names who says it, and since when."""

    CACHED = "torch 1.0 to 1.3"
    RESERVED = "torch 1.4 to 2.0"
    PROCESSES = "torch 2.1"
    EXPANDABLE = "torch 2.2 to 2.8"
    ALLOC_CONF = "torch 2.9 and later"
    ASYNC = "torch with backend:cudaMallocAsync"
    PLAIN = "torch, without figures,"
    DEVICE = "torch's backend of another device"
    """HIP, XPU, NPU, MUSA and others, whose words are those of CUDA with differences of their own."""
    MPS = "torch's MPS backend"
    FRAMEWORK = "another framework"
    DRIVER = "the driver"
    NCCL = "NCCL"
    LIBRARY = "a CUDA library"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """Why memory ran out. The last two are of a host's memory, all others of a GPU's."""

    SINGLE_REQUEST = "single_request"
    """More was asked for at once than the process may ever have."""
    LIMIT = "limit"
    """A limit of the process was reached (`set_per_process_memory_fraction`, an engine's share, Metal's), not the GPU's
    end."""
    FRAGMENTATION = "fragmentation"
    """PyTorch had reserved enough that was in no tensor, in pieces that did not fit."""
    PRIVATE_POOLS = "private_pools"
    """What CUDA graphs or MemPools keep for themselves would have sufficed."""
    OTHER_PROCESS = "other_process"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    """This process, but not PyTorch's allocator: NCCL, CUDA libraries, other frameworks."""
    NOT_PYTORCH = "not_pytorch"
    """One of the two before; the message does not tell them apart."""
    FULL = "full"
    REFUSED = "refused"
    """The driver says that there was room: a limit that the message does not print."""
    UNKNOWN = "unknown"
    HOST_LIMIT = "host_limit"
    """The limit of a cgroup: a container, a Slurm step."""
    HOST = "host"

    @property
    def of_host(self) -> bool:
        return self in (Cause.HOST_LIMIT, Cause.HOST)


@dataclass(frozen=True, slots=True)
class ProcessBytes:
    """What the driver says that another process holds on the GPU."""

    process: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a Python traceback."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFailure:
    """One failed request. All figures are bytes; None is what the form does not tell, or the driver did not know."""

    form: Form
    text: str
    line: int
    """Where it stands in the text, from 1."""
    rank: int | None = None
    vendor: str = ""
    """CUDA, HIP, XPU, NPU, MPS, ... as the message says it; empty where it does not."""
    device: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    private_pool_bytes: int = 0
    """Free, in the pools of CUDA graphs; the message counts them as allocated."""
    allowed_bytes: int | None = None
    this_process_bytes: int | None = None
    other_processes: tuple[ProcessBytes, ...] = ()
    rounding_bytes: int = 0
    """By how much sums of the figures may be off, as they were printed with two decimals."""
    caught: bool = False
    """The log says that the program went on: a choice of autotuning, a request that is tried again."""
    who: str = ""
    """Which library asked, where it was not torch's allocator."""
    frames: tuple[Frame, ...] = ()

    @property
    def unallocated_bytes(self) -> int | None:
        """Reserved by PyTorch, in no block and in no private pool."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFailure:
    """One thing that was said of a host's memory. Bytes are None where the words hold none."""

    said_by: str
    """kernel, systemd, slurm, pbs, lsf, sge, condor, kubernetes, ray, yarn, java, nccl, python, c++, torch, tensorflow,
    ollama, windows, notebook; `exit code`, `signal` and `shell` where only the kill itself is told"""
    cause: Cause
    text: str
    line: int
    process: str = ""
    resident_bytes: int | None = None
    """What it held: anonymous, file-backed and shared pages."""
    limit_bytes: int | None = None
    requested_bytes: int | None = None
    certain: bool = True
    """False where the same words are said of other ends too."""
