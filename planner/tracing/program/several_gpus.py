"""What a process with several GPUs moves between them: torch.nn.parallel's copies, and NCCL within one process.

Sizes and orders are those of torch 2.4 (torch/csrc/cuda/comm.cpp, torch/csrc/utils/tensor_flatten.cpp); take_tensors
was called in torch 2.13 too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from planner.paper.work_records import tensors_in


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """The tensor itself on its own device, and a copy on each other one."""
    return [tensor.to(torch.device("cuda", device), non_blocking=True) for device in devices]


def broadcast_out(tensor: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    """Into tensors that are there."""
    for output in outputs:
        output.copy_(tensor, non_blocking=True)
    return [*outputs]


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    """Of one dtype so many bytes at a time travel in one buffer, of which the copies are parts."""
    copies: list[dict[int, Tensor]] = [{} for _ in devices[1:]]
    with torch.cuda.device(devices[0]):
        for chunk in _chunks(tensors, buffer_size):
            parts = [tensors[index] for index in chunk]
            rows = [part.contiguous().view(-1) for part in parts]
            flat = torch.cat(rows) if len(rows) > 1 else rows[0]
            for copied, buffer in zip(copies, broadcast(flat, devices)[1:], strict=True):
                views = _unflatten_dense_tensors(buffer, parts)
                copied.update({index: view.data for index, view in zip(chunk, views, strict=True)})
    return [[*tensors], *([copied[index] for index in range(len(tensors))] for copied in copies)]


def _chunks(tensors: Sequence[Tensor], buffer_size: int) -> list[list[int]]:
    """Indices of tensors that travel together, as take_tensors has them."""
    chunks: list[list[int]] = []
    waiting: defaultdict[Any, list[int]] = defaultdict(list)
    sizes: defaultdict[Any, int] = defaultdict(int)
    for index, tensor in enumerate(tensors):
        waiting[tensor.dtype].append(index)
        sizes[tensor.dtype] += tensor.nbytes
        if sizes[tensor.dtype] >= buffer_size:
            chunks.append(waiting.pop(tensor.dtype))
            del sizes[tensor.dtype]
    return [*chunks, *waiting.values()]


def scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> list[Tensor]:
    """A part on each device, on its stream; what is there already stays where it is."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split([*sizes], dim)
    found = []
    for number, part in enumerate(parts):
        with torch.cuda.stream(streams[number] if streams else None):
            found.append(part.to(torch.device("cuda", devices[number]), non_blocking=True))
    return found


def gather(tensors: Sequence[Tensor], dim: int = 0, destination: int | None = None) -> Tensor:
    """All of them on one device, in their order; -1 is the host, None the current device."""
    index = torch.accelerator.current_device_index() if destination is None else destination
    sizes = list(tensors[0].shape)
    sizes[dim] = sum(tensor.shape[dim] for tensor in tensors)
    is_last = len(sizes) == 4 and all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in tensors)
    layout = torch.channels_last if is_last else torch.contiguous_format
    device = torch.device("cpu") if index == -1 else torch.device("cuda", index)
    result = torch.empty(sizes, dtype=tensors[0].dtype, device=device, memory_format=layout)
    return gather_out(tensors, result, dim)


def gather_out(tensors: Sequence[Tensor], output: Tensor, dim: int = 0) -> Tensor:
    """Into a tensor that is there."""
    start = 0
    for tensor in tensors:
        output.narrow(dim, start, tensor.shape[dim]).copy_(tensor, non_blocking=output.is_cuda)
        start += tensor.shape[dim]
    return output


def run_collective(*arguments: Any) -> None:
    """NCCL's, which writes to tensors that are there: what they hold is not known afterwards."""
    for tensor in tensors_in(*arguments):
        torch.ops.paper.forget_value(tensor)


BINDINGS = {
    "_broadcast": broadcast,
    "_broadcast_coalesced": broadcast_coalesced,
    "_broadcast_out": broadcast_out,
    "_gather": gather,
    "_gather_out": gather_out,
    "_scatter": scatter,
    **dict.fromkeys(
        ("_nccl_all_gather", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_reduce", "_nccl_reduce_scatter"),
        run_collective,
    ),
}
"""Of `torch._C`."""
