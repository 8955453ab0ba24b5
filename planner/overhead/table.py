"""Measured facts about memory outside the caching allocator, each with its source. All sizes are MiB.

A bare CUDA context is what the driver takes when a process first touches the GPU. It grows with the number of
multiprocessors and differs between driver and CUDA versions. On top come the images of the kernels that the
program uses: since CUDA 11.7 they are loaded lazily, with their first use
(`CUDA_MODULE_LOADING=LAZY`, set by torch itself since 1.13, pytorch/pytorch#86509).

`published.json` is the collection of published measurements kept beside the repository (`PLANNER_TRUTH`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextFact:
    """A bare CUDA context as NVML or nvidia-smi shows it, in MiB: usual, smallest and largest value seen."""

    gpu: str
    arch: str
    usual: int
    smallest: int
    largest: int
    software: str
    source: str


@dataclass(frozen=True, slots=True)
class CommunicatorFact:
    """What one NCCL communicator adds to a process, in MiB, `ranks` being its size."""

    gpu: str
    arch: str
    ranks: int
    usual: int
    smallest: int
    largest: int
    software: str
    source: str


CONTEXTS = (
    ContextFact(
        "H100", "sm_90", 614, 610, 616, "torch 2.8 to 2.10, CUDA 12.6/12.8, drivers 535 to 580",
        "published.json nvidia_smi_overhead-0 to -42: nvidia-smi right after the process group's init",
    ),
    ContextFact(
        "H200", "sm_90", 520, 520, 520, "torch 2.10.0, CUDA 12.8, driver 570.172.08",
        "published.json nvidia_smi_overhead-36: one log",
    ),
    ContextFact(
        "RTX-6000-Ada", "sm_89", 426, 426, 426, "torch 2.10.0, CUDA 13.0",
        "unslothai/unsloth-zoo#1053: nvidia-smi after torch.cuda.mem_get_info(0)",
    ),
    ContextFact(
        "RTX-3090", "sm_86", 256, 256, 256, "torch 2.7.1, CUDA 12.8, driver 610.43",
        "invoke-ai/InvokeAI#9413: nvidia-smi of an idle process",
    ),
)  # fmt: skip
"""Not in here: 1,343 MiB on a V100 (published.json nvidia_smi_overhead-44, CUDA 11.2, 2022), because it is the whole
device's use, the driver's reserve included, from the time when all kernels were loaded at once."""

COMMUNICATORS = (
    CommunicatorFact(
        "H100", "sm_90", 8, 896, 892, 996, "torch 2.8 to 2.10, CUDA 12.6/12.8",
        "published.json nvidia_smi_overhead-0 to -42: 1,506 to 1,512 MiB (two logs: 1,606) less the bare context",
    ),
    CommunicatorFact(
        "H200", "sm_90", 8, 984, 984, 984, "torch 2.10.0, CUDA 12.8",
        "published.json nvidia_smi_overhead-36: 1,504 MiB less the bare context, one log",
    ),
    CommunicatorFact(
        "A100", "sm_80", 4, 688, 688, 688, "2023, NVLink",
        "NVIDIA/nccl#964: each group of more than two ranks after a 4 MB all-reduce",
    ),
    CommunicatorFact(
        "A100", "sm_80", 2, 544, 544, 544, "2023, NVLink",
        "NVIDIA/nccl#964: each group of two ranks after a 4 MB all-reduce",
    ),
)  # fmt: skip
"""Not in here: 1,176 MiB of an H100 process with torch 2.11 and CUDA 13.0 (published.json nvidia_smi_overhead-38). It
is a run on one GPU, and NCCL 2.28 gives a communicator of one rank a needless buffer of 512 MiB
(NVIDIA/nccl#2363): it says nothing about eight ranks. Nor all-to-all, whose first use took a process on 8 H100 from
1.06 to 4.34 GB (NVIDIA/nccl#1685)."""

KERNEL_IMAGES = 164
"""Grown outside the allocator between the bare context and a running model: 0.16 GiB, vllm-project/vllm#12126,
H100, an 11B vision and language model run eagerly."""
KERNEL_IMAGES_SMALLEST = 32
"""A guess for a model of few kernels; nothing smaller than one library's images was seen."""
KERNEL_IMAGES_LARGEST = 362
"""All of torch's kernels at once instead of lazily: 666,632,192 less 287,047,680 bytes, pytorch/pytorch#86509."""

SAME_ARCHITECTURE = (0.40, 1.30)
ANOTHER_ARCHITECTURE = (0.35, 1.60)
"""How far a context may be from that of the GPU it is taken from. Not measured: between the GPUs of the table the
context is 3.0 to 4.7 MiB per multiprocessor, and GPUs of one architecture differ by as much as 2.5 in their number."""

OTHER_LINKS = (0.25, 1.30)
"""How far a communicator may be from one on another GPU or of another size. Not measured: NCCL's buffers are
proportional to its channels, and a PCIe machine opens a quarter of an NVLink machine's (NVIDIA/nccl#986)."""
FURTHER_COMMUNICATOR_SMALLEST = 0.10
"""A communicator split off another one may share its buffers (NVIDIA/nccl#986)."""
