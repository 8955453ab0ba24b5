"""Sorts and running sums: what they take besides their results.

Source, torch 2.13: aten/src/ATen/native/cuda/Sort.cpp, Sort.h, SortStable.cu, ScanUtils.cuh, native/ReduceOps.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.sorting import bits_of, radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch

Tensor = torch.Tensor

_SMALL = 4096
_LARGE = 1_000_000
_FEW_SEGMENTS = 128
_INDEX = 8


@cuda("sort.stable")
def sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Up to 4,096 values a row are sorted in place, with one row of places; more go to cub."""
    values: Tensor
    values, indices = like_meta("sort.stable", x, stable=stable, dim=dim, descending=descending)
    if x.dim() == 0 or x.numel() == 0:
        return values, indices
    length = x.size(dim)
    if length <= _SMALL:
        row = torch.empty(length, dtype=torch.int64, device="cuda")
        del row
        return values, indices
    temporaries = _rows_behind_one_another(x, dim)
    temporaries += _cub(x.numel() // length, length, x.element_size())
    del temporaries
    return values, indices


def _rows_behind_one_another(x: Tensor, dim: int) -> list[Tensor]:
    """Input, values and indices once more, unless the rows lie that way already."""
    if x.stride(dim) == 1 and torch.ops.aten.is_non_overlapping_and_dense(x):
        return []
    moved = x.transpose(dim, -1).shape
    return [x.new_empty(moved), x.new_empty(moved), x.new_empty(moved, dtype=torch.int64)]


def _cub(rows: int, length: int, item: int) -> list[Tensor]:
    """One row, or long ones, are sorted one by one; a few by value and then by row; many by segments."""
    count = rows * length
    if rows == 1 or length >= _LARGE:
        return [scratch(length * _INDEX), scratch(radix_sort_bytes(length, item, _INDEX, item * 8))]
    if rows >= _FEW_SEGMENTS:
        return [scratch(count * _INDEX), scratch(count * (item + _INDEX))]
    pairs = [scratch(count * _INDEX), scratch(count * _INDEX)]
    by_value = [scratch(count * item), scratch(radix_sort_bytes(count, item, _INDEX, item * 8))]
    del by_value
    by_row = scratch(radix_sort_bytes(count, _INDEX, 0, bits_of(rows - 1)))
    del by_row
    return pairs


@cuda("cumsum", "cumprod")
def running(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """The input in the result's dtype; if it is all one row, cub's scan."""
    kind = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    result: Tensor = like_meta("cumsum", x, dim, dtype=kind)
    converted: Any = x if x.dtype is kind else torch.empty_like(x, dtype=kind)
    converted = converted.contiguous()
    if x.dim() > 0 and x.numel() > 0 and x.numel() == x.size(dim):
        scan = scratch(scan_bytes(x.numel(), kind.itemsize))
        del scan
    del converted
    return result
