"""Distinct values and how often they come: sized by the data, and so known for data that came from the host alone.

Source, torch 2.13: aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu, SummaryOps.cu.
"""

from __future__ import annotations

import torch

from planner.paper import values
from planner.paper.kernels.sorting import radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, scratch

Tensor = torch.Tensor


@cuda("_unique")
def unique_of_old(x: Tensor, is_sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    found, inverse, _ = _distinct(x, _count_distinct(x), return_inverse, False, is_sorted=False)
    return found, inverse


@cuda("_unique2")
def unique(
    x: Tensor,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct(x, _count_distinct(x), return_inverse, return_counts, is_sorted=False)


@cuda("unique_consecutive")
def unique_in_a_row(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_slices_in_a_row(x, dim, return_inverse, return_counts)
    count = int(torch.unique_consecutive(_read(x)).numel())
    return _distinct(x, count, return_inverse, return_counts, is_sorted=True)


@cuda("unique_dim")
def unique_slices(
    x: Tensor,
    dim: int,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct_slices(x, dim, torch.unique(_read(x), dim=dim), return_inverse, return_counts)


@cuda("unique_dim_consecutive")
def unique_slices_in_a_row(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct_slices(x, dim, torch.unique_consecutive(_read(x), dim=dim), return_inverse, return_counts)


@cuda("bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    bins = minlength if x.numel() == 0 else max(minlength, int(_read(x, "aten.bincount").max()) + 1)
    if weights is None:
        return torch.zeros(bins, dtype=torch.int64, device="cuda")
    return torch.zeros(bins, dtype=torch.float32 if weights.dtype is torch.float32 else torch.float64, device="cuda")


def _read(x: Tensor, operator: str = "aten.unique") -> Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype)
    known: Tensor | None = torch.ops.paper.known_value(x)
    if known is None:
        values.refuse_size_of(operator, x)
    return known


def _count_distinct(x: Tensor) -> int:
    if x.numel() and torch.ops.paper.known_value(x) is None:
        return values.count_distinct("aten.unique", x)
    return int(torch.unique(_read(x)).numel())


def _distinct(
    x: Tensor, count: int, return_inverse: bool, return_counts: bool, *, is_sorted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sorted with their places, marked where they change, and the rest cut off: storages stay as large as the data."""
    items, nothing = x.numel(), torch.empty(0, dtype=torch.int64, device="cuda")
    if items == 0:
        inverse = torch.empty(x.shape, dtype=torch.int64, device="cuda") if return_inverse else nothing
        return x.new_empty(0), inverse, torch.empty_like(nothing)
    kept = [] if is_sorted else [torch.empty(items, dtype=x.dtype, device="cuda")]
    if not is_sorted:
        places = [torch.empty(items, dtype=torch.int32, device="cuda") for _ in range(2 if return_inverse else 0)]
        kept += places
        scratch(radix_sort_bytes(items, x.element_size(), 4 if return_inverse else 0, 8 * x.element_size()))
    inverse = nothing
    if return_inverse:
        kept.append(torch.empty(items, dtype=torch.int64, device="cuda"))
        inverse = torch.empty(x.shape, dtype=torch.int64, device="cuda")
    found = torch.empty(items, dtype=x.dtype, device="cuda")
    counts = torch.empty(items if return_counts else 0, dtype=torch.int64, device="cuda")
    total = torch.empty((), dtype=torch.int64, device="cuda")
    scratch(scan_bytes(items, 8))
    del kept, total
    found.resize_(count)
    if return_counts:
        counts.resize_(count)
        if (known := torch.ops.paper.known_value(x)) is not None:
            repeats = torch.unique_consecutive if is_sorted else torch.unique
            counts.copy_(repeats(known, return_counts=True)[-1])
    return found, inverse, counts


def _distinct_slices(
    x: Tensor, dim: int, on_host: Tensor, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Slices are laid out one after the other and their numbers sorted."""
    items, nothing = x.size(dim), torch.empty(0, dtype=torch.int64, device="cuda")
    if items == 0:
        return x.new_empty(on_host.shape), nothing, torch.empty_like(nothing)
    rows = x.transpose(dim, 0).contiguous()
    indices = torch.empty(items, dtype=torch.int64, device="cuda")
    inverse = torch.empty(items if return_inverse else 0, dtype=torch.int64, device="cuda")
    counts = torch.empty(on_host.size(dim) if return_counts else 0, dtype=torch.int64, device="cuda")
    found = x.new_empty(on_host.shape)
    del rows, indices
    return found, inverse, counts
