"""What is known of one type of GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.records import shape
from planner.units import parse_bytes

_SIZE = shape(read=parse_bytes)
"""Written as `79.10GiB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredContext:
    """A bare CUDA context as NVML or nvidia-smi shows it, in MiB: usual, smallest and largest value seen.

    It is what the driver takes when a process first touches the GPU; it grows with the number of multiprocessors and
    differs between driver and CUDA versions.
    """

    usual: int
    smallest: int
    largest: int
    software: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCommunicator:
    """What one NCCL communicator of `ranks` ranks adds to a process, in MiB: usual, smallest and largest value seen."""

    ranks: int
    usual: int
    smallest: int
    largest: int
    software: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPool:
    """Memory that a GPU and the processors of its host share: what one takes the other does not have. In bytes, for
    each GPU."""

    total_bytes: int = field(metadata=_SIZE)
    system_bytes: int = field(metadata=_SIZE)
    """What the system holds of it at rest."""
    floor_bytes: int = field(metadata=_SIZE)
    """With less than that left hosts have stopped answering, without an error and without an OOM kill."""
    source: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecord:
    """One GPU.

    `total_bytes` is what `torch.cuda.get_device_properties().total_memory` reports, which is the "total capacity" of
    torch's out-of-memory messages and less than nvidia-smi's total: the driver and ECC take their part. The same GPU
    differs by up to 200 MiB between drivers; here stands the least that several reports of current drivers agree on, so
    that a verdict errs to the safe side. Figures in GiB come from messages with two decimals: good to 5 MiB.
    """

    name: str
    """As jobs write it, in `cluster.gpu`."""
    model: str
    """GPUs of one model take the same context and communicators, whatever their memory and socket."""
    arch: str
    """`sm_90`, ...; `ARCHITECTURES` has what it decides."""
    total_bytes: int = field(metadata=_SIZE)
    provenance: str
    """Who reported `total_bytes`, with which software."""
    multiprocessors: int
    """Vendors' data sheets: CUDA cores by the 64 or 128 of a multiprocessor; of AMD's GPUs compute units. Of A10G
    and B200 as `torch.cuda.get_device_properties().multi_processor_count` says it."""
    product: str = ""
    """As nvidia-smi and `get_device_properties().name` say it; empty for other vendors' GPUs."""
    aliases: tuple[str, ...] = ()
    """How schedulers call it, letters of either case: first Ray's accelerator type (ray/util/accelerators/
    accelerators.py of Ray 2.60, where it has one), then what Slurm's gres types usually say. One alias may name several
    GPUs."""
    usual: bool = False
    """Of the GPUs that share an alias, the one that people mean who say no more: the variant that most public clouds
    rent out and most published jobs name."""
    context: MeasuredContext | None = None
    """Measured on this GPU; None: not measured."""
    communicators: tuple[MeasuredCommunicator, ...] = ()
    """Measured on several of this GPU."""
    speed: Speed | None = field(default=None, repr=False)
    """Of what is in no memory figure, and in no digest of the catalog."""
    pool: MemoryPool | None = None
    """Where it has no memory of its own."""
    note: str = ""
    """What else has to be known of its memory, for people; said with every plan."""
    whole: str = ""
    """Of a MIG slice: the name of the GPU that it is a part of."""
    slice: str = ""
    """Of a MIG slice: its profile, such as `1g.10gb`."""

    @property
    def node_label(self) -> str:
        """The value of the node label nvidia.com/gpu.product; empty for other vendors' GPUs.

        NVIDIA's GPU feature discovery sets it: the product's name with dashes for its spaces
        (NVIDIA/k8s-device-plugin, internal/lm/resource.go, productLabel).
        """
        return self.product.replace(" ", "-")
