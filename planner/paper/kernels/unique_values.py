"""Distinct values and how often they come: sized by the data, and so known for data that came from the host; of a
program's other data as many as there can be.

Source, torch 2.13: aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu, SummaryOps.cu.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from planner.paper import values
from planner.paper.kernels.sorting import radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, scratch

Tensor = torch.Tensor

_FEW_BYTES = 2
"""Of whole numbers so small there are fewer distinct ones than large tensors have elements."""


@cuda("_unique")
def unique_of_old(x: Tensor, is_sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    found, inverse, _ = _distinct(x, _count(x, torch.unique), return_inverse, False, is_sorted=False)
    return found, inverse


@cuda("_unique2")
def unique(
    x: Tensor,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct(x, _count(x, torch.unique), return_inverse, return_counts, is_sorted=False)


@cuda("unique_consecutive")
def unique_in_a_row(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_slices_in_a_row(x, dim, return_inverse, return_counts)
    return _distinct(x, _count(x, torch.unique_consecutive), return_inverse, return_counts, is_sorted=True)


@cuda("unique_dim")
def unique_slices(
    x: Tensor,
    dim: int,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct_slices(x, dim, _count(x, torch.unique, dim), return_inverse, return_counts)


@cuda("unique_dim_consecutive")
def unique_slices_in_a_row(
    x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    return _distinct_slices(x, dim, _count(x, torch.unique_consecutive, dim), return_inverse, return_counts)


@cuda("bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    known = _known(x)
    if known is None and minlength == 0:
        values.refuse_size_of("aten.bincount", x, remedy="say minlength: there is no largest number of bins")
    if known is None:
        bins = values.count("aten.bincount", x, minlength, "bins", "as many as minlength asks for: no value is larger")
    else:
        bins = max(minlength, int(known.max()) + 1) if x.numel() else minlength
    if weights is None:
        return torch.zeros(bins, dtype=torch.int64, device="cuda")
    return torch.zeros(bins, dtype=torch.float32 if weights.dtype is torch.float32 else torch.float64, device="cuda")


def _known(x: Tensor) -> Tensor | None:
    """Its values on the host, if they are known."""
    found: Tensor | None = torch.ops.paper.known_value(x) if x.numel() else torch.empty(x.shape, dtype=x.dtype)
    return found


def _count(x: Tensor, distinct: Callable[..., Tensor], dim: int | None = None) -> int:
    """How many values are distinct, or slices along a dim."""
    if (known := _known(x)) is not None:
        return distinct(known).numel() if dim is None else distinct(known, dim=dim).size(dim)
    if values.node_name() == "IndexFillBackward1":
        return x.numel()  # the places that `index_fill` has filled
    most = x.numel() if dim is None else x.size(dim)
    if dim is None and distinct is torch.unique and not x.is_floating_point() and x.element_size() <= _FEW_BYTES:
        most = min(most, 2 if x.dtype is torch.bool else 1 << 8 * x.element_size())
    return values.count("aten.unique", x, most, "distinct values" if dim is None else "distinct slices")


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
    x: Tensor, dim: int, count: int, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Slices are laid out one after the other and their numbers sorted."""
    items, nothing = x.size(dim), torch.empty(0, dtype=torch.int64, device="cuda")
    shape = list(x.shape)
    shape[dim] = count
    if items == 0:
        return x.new_empty(shape), nothing, torch.empty_like(nothing)
    rows = x.transpose(dim, 0).contiguous()
    indices = torch.empty(items, dtype=torch.int64, device="cuda")
    inverse = torch.empty(items if return_inverse else 0, dtype=torch.int64, device="cuda")
    counts = torch.empty(count if return_counts else 0, dtype=torch.int64, device="cuda")
    found = x.new_empty(shape)
    del rows, indices
    return found, inverse, counts
