"""What is known of memory outside the caching allocator besides the records of GPUs: images, margins. Sizes are MiB.

Bare contexts and NCCL's communicators are measured facts of GPUs (planner/hardware/gpus.py). On top of a context come
the images of the kernels that the program uses: since CUDA 11.7 they are loaded lazily, with their first use
(`CUDA_MODULE_LOADING=LAZY`, set by torch itself since 1.13, pytorch/pytorch#86509).
"""

from __future__ import annotations

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
