"""Builds messages of being out of memory as torch prints them, from their figures, in each of its forms.

The words are those of c10/cuda/CUDACachingAllocator.cpp and CUDAMallocAsyncAllocator.cpp; figures are written as they
stand in the message (`23.65 GiB`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]


def cached(facts: Facts) -> str:
    """torch 1.0 to 1.3."""
    return _in_brackets(facts, f"{facts['cached']} cached")


def reserved(facts: Facts) -> str:
    """torch 1.4 to 2.0, the limit of the process since 1.8."""
    allowed = f"{facts['allowed']} allowed; " if "allowed" in facts else ""
    return _in_brackets(facts, f"{allowed}{facts['reserved']} reserved in total by PyTorch")


def processes(facts: Facts) -> str:
    """torch 2.1."""
    return _in_sentences(facts, "capacty", "max_split_size_mb")


def expandable(facts: Facts) -> str:
    """torch 2.2 to 2.8."""
    return _in_sentences(facts, "capacity", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def alloc_conf(facts: Facts) -> str:
    """torch 2.9 and later."""
    return _in_sentences(facts, "capacity", "PYTORCH_ALLOC_CONF=expandable_segments:True")


def mallocasync(facts: Facts) -> str:
    """backend:cudaMallocAsync."""
    return (
        f"Allocation on device {facts['device']} would exceed allowed memory. (out of memory)\n"
        f"Currently allocated     : {facts['allocated']}\nRequested               : {facts['tried']}\n"
        f"Device limit            : {facts['total']}\nFree (according to CUDA): {facts['free']}\n"
        f"PyTorch limit (set by user-supplied memory fraction)\n                        : {facts['allowed']}"
    )


def nccl(facts: Facts) -> str:
    """NCCL's warnings (include/alloc.h), as NCCL_DEBUG prints them."""
    head = "node:3063028:3066152 [3] include/alloc.h:178 NCCL WARN"
    return (
        f"{head} Cuda failure 'out of memory'\n\n"
        f"node:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc {facts['tried']}"
    )


def library(facts: Facts) -> str:
    """aten/src/ATen/cuda/Exceptions.h."""
    return f"RuntimeError: CUDA error: {facts['status']} when calling `{facts['call']}`"


def driver(_: Facts) -> str:
    """c10/cuda/CUDAException.cpp."""
    return "torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"


FORMS: dict[str, Callable[[Facts], str]] = {
    each.__name__: each
    for each in (cached, reserved, processes, expandable, alloc_conf, mallocasync, nccl, library, driver)
}


def _in_brackets(facts: Facts, rest: str) -> str:
    return (
        f"RuntimeError: {facts.get('maker', 'CUDA')} out of memory. Tried to allocate {facts['tried']} "
        f"(GPU {facts['device']}; {facts['total']} total capacity; {facts['allocated']} already allocated; "
        f"{facts['free']} free; {rest})"
    )


def _in_sentences(facts: Facts, capacity: str, advice: str) -> str:
    others: Sequence[tuple[int, str]] = facts.get("others", ())
    listed = "".join(f"Process {number} has {held} memory in use. " for number, held in others)
    if "this" in facts:
        listed += f"Including non-PyTorch memory, this process has {facts['this']} memory in use. "
    allowed = f"{facts['allowed']} allowed; " if "allowed" in facts else ""
    pools = f"with {facts['pools']} allocated in private pools (e.g., CUDA Graphs), " if "pools" in facts else ""
    return (
        f"torch.OutOfMemoryError: {facts.get('maker', 'CUDA')} out of memory. Tried to allocate {facts['tried']}. GPU "
        f"{facts['device']} has a total {capacity} of {facts['total']} of which {facts['free']} is free. "
        f"{listed}{allowed}Of the allocated memory {facts['allocated']} is allocated by PyTorch, {pools}and "
        f"{facts['unallocated']} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
        f"try setting {advice} to avoid fragmentation.  See documentation for Memory Management"
    )
