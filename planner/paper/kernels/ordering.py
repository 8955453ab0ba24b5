"""Sorts, the largest values and running sums: what they take besides their results.

Source, torch 2.13: aten/src/ATen/native/cuda/Sort.cpp, Sort.h, SortStable.cu, TensorTopK.cpp, TensorTopK.cu,
Sorting.cpp, ScanUtils.cuh, native/ReduceOps.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels.sorting import bits_of, radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch, target

Tensor = torch.Tensor

_SMALL = 4096
_LARGE = 1_000_000
_FEW_SEGMENTS = 128
_INDEX = 8
_ROWS_AND_LENGTHS = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (None, 400),
)  # fmt: skip
"""Up to so many rows, those from this length on are spread over blocks (should_use_multiblock)."""
_BLOCK, _DIGITS = 256, 256
_FEWEST_VALUES, _MOST_VALUES = 4, 64
"""That one thread reads of a spread row."""
_BLOCKS_OF_A_MULTIPROCESSOR = 6
"""By registers: 65,536 of a multiprocessor, 40 of a thread."""


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


@cuda("topk")
def topk(
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]:
    values: Tensor
    values, indices = like_meta("topk", x, k, dim, largest, sorted)
    if values.numel() > 0:
        select_largest(x, values, dim)
        if sorted and k > _SMALL:
            ordered = sort(values, stable=False, dim=dim, descending=largest)
            gathered = torch.empty_like(indices)
            del ordered, gathered
    return values, indices


def select_largest(x: Tensor, values: Tensor, dim: int) -> None:
    """What `topk` takes before it sorts what it has found: what is contiguous is read, and few or long rows are spread
    over blocks, which count digits."""
    whole = x.contiguous()
    length = x.size(dim) if x.dim() else 1
    rows = x.numel() // length
    if _is_spread(rows, length) and not target().is_cpu:
        spread = _count_digits(rows, length, values.element_size())
        del spread
    del whole


def _is_spread(rows: int, length: int) -> bool:
    return length >= next(shortest for most, shortest in _ROWS_AND_LENGTHS if most is None or rows <= most)


def _count_digits(rows: int, length: int, item: int) -> list[Tensor]:
    threads = target().multiprocessors * _BLOCKS_OF_A_MULTIPROCESSOR * _BLOCK
    each = max(_FEWEST_VALUES, min(_MOST_VALUES, -(-rows * length // threads)))
    blocks = rows * -(-length // (each * _BLOCK))
    radix = max(4, item)
    sizes = [rows * item, rows * 4, 2 * rows * 4, 2 * rows * radix, blocks * _DIGITS * 2, blocks * 4, blocks * 4]
    taken = [scratch(size) for size in sizes]
    for _ in range(2):  # sums over the blocks of a row
        scratch(scan_bytes(blocks, 8))
    return taken


@cuda("median", "nanmedian")
def median(x: Tensor) -> Tensor:
    """Of a copy; the place is found besides."""
    if x.numel() == 0:
        return x.new_empty(())
    copy = x.new_empty(x.numel())
    values, place = x.new_empty(1), torch.empty(1, dtype=torch.int64, device="cuda")
    del copy, place
    return values.view(())


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
