"""Fills and fully_shard's copies into buffers that are there allocate nothing; buffers that do not fit grow or are
refused, as with torch.

On paper they are worked out natively where they fit (planner/paper/native/structured.cpp), by torch's own meta kernels
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

GRADIENTS = ((8, 3), (5, 2), (4,))
"""The second does not divide into four."""


@pytest.mark.parametrize("fill", [Tensor.normal_, Tensor.uniform_])
def test_filling_a_tensor_takes_nothing(fill: Callable[[Tensor], Tensor], taken: Any) -> None:
    found = taken(lambda: [torch.empty(4, 6, device="cuda").t()], fill)

    assert (found.kept, found.temporary) == ([], [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_put_into_a_buffer_of_another_dtype(dtype: torch.dtype, taken: Any) -> None:
    found = taken(lambda: (gradients(dtype), torch.empty(4, 11, device="cuda")), put)

    assert (found.kept, found.temporary) == ([], [])
    assert torch._chunk_cat([torch.ones(shape) for shape in GRADIENTS], dim=0, num_chunks=4).shape == (4, 11)


def test_a_buffer_that_is_empty_grows_to_its_size(taken: Any) -> None:
    found = taken(lambda: (gradients(torch.float32), torch.empty(0, device="cuda")), put)

    assert found.kept_bytes == [4 * 11 * 4]


def gradients(dtype: torch.dtype) -> list[Tensor]:
    return [torch.empty(shape, dtype=dtype, device="cuda") for shape in GRADIENTS]


def put(tensors: list[Tensor], buffer: Tensor) -> Tensor:
    torch._chunk_cat(tensors, dim=0, num_chunks=4, out=buffer)
    assert buffer.shape == (4, 11)
    return buffer


@pytest.mark.skipif(not hasattr(torch.ops.fsdp, "chunk_cat_mixed_dtype"), reason="torch 2.15 has it")
@pytest.mark.parametrize(("low", "cast_bytes"), [(torch.bfloat16, []), (torch.float16, [40, 16])])
def test_gradients_of_two_dtypes_are_cast_where_no_kernel_casts_them(
    low: torch.dtype, cast_bytes: list[int], taken: Any
) -> None:
    def make() -> tuple[list[Tensor], Tensor]:
        first, *rest = gradients(low)
        return [first.float(), *rest], torch.empty(4, 11, device="cuda")

    def mix(tensors: list[Tensor], buffer: Tensor) -> Tensor:
        torch.ops.fsdp.chunk_cat_mixed_dtype(tensors, 0, 4, out=buffer)
        return buffer

    found = taken(make, mix)

    assert (found.kept, found.temporary_bytes) == ([], cast_bytes)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_what_was_gathered_is_copied_into_parameters(dim: int, taken: Any) -> None:
    def make() -> tuple[Tensor, list[Tensor]]:
        gathered = torch.empty(6, 6, device="cuda")
        return gathered, [torch.empty_like(part) for part in gathered.split([1, 3, 2], dim=dim)]

    found = taken(make, lambda whole, parts: torch.split_with_sizes_copy(whole, [1, 3, 2], dim=dim, out=parts))

    assert (found.kept, found.temporary) == ([], [])


def test_sizes_that_are_not_those_of_the_whole_are_refused(taken: Any) -> None:
    def make() -> tuple[Tensor, list[Tensor]]:
        return torch.empty(6, 6, device="cuda"), [torch.empty(rows, 6, device="cuda") for rows in (1, 3)]

    with pytest.raises(RuntimeError, match="split_with_sizes expects split_sizes to sum exactly to 6"):
        taken(make, lambda whole, parts: torch.split_with_sizes_copy(whole, [1, 3], out=parts))
