"""The chunks of a parameter over the ranks that shard it, each made when it is asked for.

fully_shard makes a list of as many chunks as there are ranks, for every parameter, and takes two of them (torch 2.13,
distributed/fsdp/_fully_shard/_fsdp_common.py, `_chunk_with_empty`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

import torch.distributed as dist
from torch import Tensor

from planner import upstream

_TARGET = "torch.distributed.fsdp._fully_shard._fsdp_param:_chunk_with_empty"


class ShardChunks(Sequence[Tensor]):
    """What torch.chunk makes of a tensor, filled up with empty tensors to `number`."""

    def __init__(self, tensor: Tensor, number: int, dim: int) -> None:
        self._tensor, self._number, self._dim = tensor, number, dim
        self._rows = -(-tensor.size(dim) // number)

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...

    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if isinstance(index, slice):
            return [self._chunk(each) for each in range(self._number)[index]]
        return self._chunk(range(self._number)[index])

    def _chunk(self, number: int) -> Tensor:
        size, start = self._tensor.size(self._dim), number * self._rows
        if 0 < size <= start:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._rows, size - start))


@contextmanager
def made_when_asked_for() -> Iterator[None]:
    """Inside, fully_shard makes the chunks that it takes and no others."""
    if not dist.is_available():
        yield
        return
    with upstream.patch_targets("shard chunks", replaced={_TARGET: _chunk_with_empty}):
        yield


def _chunk_with_empty(tensor: Tensor, num_chunks: int, dim: int) -> ShardChunks:
    return ShardChunks(tensor, num_chunks, dim)
