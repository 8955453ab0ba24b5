"""Operators whose results are numbers of the host, or as large as values say, which nobody has: CUDA's kernels would
read them. What these take besides their results is what CUDA's own take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from planner.paper import random_numbers, values
from planner.paper.cub import radix_sort_bytes, reduction_bytes, scan_bytes
from planner.paper.outside.operators import record_operator, scratch
from planner.paper.values import known_value

Distinct = tuple[Tensor, Tensor, Tensor]
"""Values, of which value each is, and how many of each there are."""
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
_KERNELS: dict[str, Callable[..., Any]] = {}
"""By operator of torch, with its overload."""
_OF_SPARSE = ("_coalesce",)
_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd


def _decided(operator: str) -> Callable[[Kernel], Kernel]:
    def add(kernel: Kernel) -> Kernel:
        _KERNELS[operator] = kernel
        return kernel

    return add


@cache
def install() -> torch.library.Library:
    """Register the operators of this file with torch, once for the process. What is returned has to stay."""
    aten = torch.library.Library("aten", "IMPL")
    for operator, kernel in _KERNELS.items():
        torch.ops.paper.runs_in_python(f"aten::{operator.partition('.')[0]}")
        key = "SparseCUDA" if operator in _OF_SPARSE else "CUDA"
        aten.impl(operator, _recorded(operator, kernel), key)
    return aten


def _recorded(operator: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """What the kernel takes is recorded as the operator's, or as that of an outer one that asked for it."""
    name = f"aten::{operator.partition('.')[0]}"

    def run(*arguments: Any, **named: Any) -> Any:
        with record_operator(name):
            return kernel(*arguments, **named)

    return run


# Sources, torch 2.13: aten/src/ATen/native/cuda/Nonzero.cu, IndexKernel.cpp, Repeat.cu.


@_decided("nonzero")
def nonzero(x: Tensor) -> Tensor:
    """They are counted; then there is room for the coordinates, dim by dim, and they are selected."""
    known = known_value(x)
    count = values.count_nonzero("aten.nonzero", x) if known is None else int(known.count_nonzero())
    kept = x.contiguous()
    counter = torch.empty((), dtype=torch.int32, device="cuda")
    scratch(reduction_bytes(x.numel()))
    out = torch.empty(x.dim(), count, dtype=torch.int64, device="cuda").t()
    scratch(scan_bytes(x.numel(), 8))
    del kept, counter
    return out


@_decided("masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape) or (1,)
    selected: Tensor = torch.ops.aten.index.Tensor(x.expand(shape), [mask.expand(shape)])
    return selected


@_decided("masked_scatter_backward")
def masked_scatter_backward(gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """Each scattered value has a place."""
    with values.selecting(min(math.prod(sizes), mask.numel())):
        scattered: Tensor = torch.ops.aten.masked_scatter_backward.default._op_dk(_COMPOSITE, gradient, mask, sizes)
    return scattered


@_decided("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Running sums of the repeats, then as many places as they come to."""
    known = known_value(repeats)
    if output_size is None and known is None:
        values.refuse_size("aten.repeat_interleave", repeats, remedy="say output_size: there is no largest size")
    size = int(known.sum()) if output_size is None and known is not None else output_size
    sums = torch.empty_like(repeats, dtype=torch.int64)
    kept = scratch(scan_bytes(repeats.numel(), 8))
    out = torch.empty(size or 0, dtype=repeats.dtype, device="cuda")
    del sums, kept
    return out


@_decided("equal")
def equal(a: Tensor, b: Tensor) -> bool:
    """Shapes are known; values are read, if anybody knows them."""
    if a.shape != b.shape:
        return False
    if a.numel() == 0 or a.data_ptr() == b.data_ptr():
        return True
    known = [torch.ops.paper.known_value(t) for t in (a, b)]
    if None not in known:
        return bool(torch.equal(*known))
    if (truth := values.known_truth(a)) is not None:
        return truth
    return bool((a == b).all().item())


# Source, torch 2.13: aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu, SummaryOps.cu.
_FEW_BYTES = 2
"""Of whole numbers so small there are fewer distinct ones than large tensors have elements."""


@_decided("_unique")
def unique_of_old(x: Tensor, is_sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return _distinct(torch.unique, x, return_inverse)[:2]


@_decided("_unique2")
def unique(
    x: Tensor,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Distinct:
    return _distinct(torch.unique, x, return_inverse, return_counts)


@_decided("unique_consecutive")
def unique_in_a_row(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Distinct:
    if dim is None:
        return _distinct(torch.unique_consecutive, x, return_inverse, return_counts)
    return unique_slices_in_a_row(x, dim, return_inverse, return_counts)


@_decided("unique_dim")
def unique_slices(
    x: Tensor,
    dim: int,
    is_sorted: bool = True,  # noqa: ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Distinct:
    return _distinct_slices(torch.unique, x, dim, return_inverse, return_counts)


@_decided("unique_dim_consecutive")
def unique_slices_in_a_row(x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Distinct:
    return _distinct_slices(torch.unique_consecutive, x, dim, return_inverse, return_counts)


@_decided("bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    known, among = known_value(x), torch.ops.paper.places(x)
    if known is not None:
        bins = max(minlength, int(known.max()) + 1) if x.numel() else minlength
    elif among > minlength:
        bins = values.count("aten.bincount", x, among, "bins", f"each value is one of {among:,}")
    elif minlength == 0:
        values.refuse_size("aten.bincount", x, remedy="say minlength: there is no largest number of bins")
    else:
        bins = values.count("aten.bincount", x, minlength, "bins", "as many as minlength asks for: no value is larger")
    if weights is None:
        counts = torch.zeros(bins, dtype=torch.int64, device="cuda")
        if known is None:
            torch.ops.paper.remember_value(counts, values.equal_shares(x.numel(), bins))
        return counts
    sums = torch.zeros(bins, dtype=torch.float32 if weights.dtype is torch.float32 else torch.float64, device="cuda")
    torch.ops.paper.forget_value(sums)
    return sums


def _count(distinct: Callable[..., Tensor], x: Tensor, dim: int | None = None) -> int:
    """How many values are distinct, or slices along a dim."""
    if (known := known_value(x)) is not None:
        return distinct(known).numel() if dim is None else distinct(known, dim=dim).size(dim)
    if values.node_name() == "IndexFillBackward1":
        return x.numel()  # the places that `index_fill` has filled
    most = x.numel() if dim is None else x.size(dim)
    if dim is None and distinct is torch.unique and not x.is_floating_point() and x.element_size() <= _FEW_BYTES:
        most = min(most, 2 if x.dtype is torch.bool else 1 << 8 * x.element_size())
    most = min(most, torch.ops.paper.places(x) or most)
    return values.count("aten.unique", x, most, "distinct values" if dim is None else "distinct slices")


def _distinct(
    distinct: Callable[..., Tensor], x: Tensor, return_inverse: bool, return_counts: bool = False
) -> Distinct:
    """Sorted with their places, marked where they change, and the rest cut off: storages stay as large as the data."""
    count = _count(distinct, x)
    items, nothing = x.numel(), torch.empty(0, dtype=torch.int64, device="cuda")
    if items == 0:
        inverse = torch.empty(x.shape, dtype=torch.int64, device="cuda") if return_inverse else nothing
        return x.new_empty(0), inverse, torch.empty_like(nothing)
    kept = []
    if distinct is torch.unique:
        kept.append(torch.empty(items, dtype=x.dtype, device="cuda"))
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
    return found, inverse, counts


def _distinct_slices(
    distinct: Callable[..., Tensor], x: Tensor, dim: int, return_inverse: bool, return_counts: bool
) -> Distinct:
    """Slices are laid out one after the other and their numbers sorted."""
    count = _count(distinct, x, dim)
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


# Source, torch 2.13: aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu (_coalesce_sparse_cuda). Thrust counts there:
# what it brings to the host no operator reads.
@_decided("_coalesce")
def coalesce(x: Tensor) -> Tensor:
    """Places are numbered and sorted; each distinct one keeps a row."""
    places, rows = x._indices(), x._values()
    known = known_value(places)
    if known is not None:
        count = torch.unique(known, dim=1).size(1)
    elif (count := places.size(1)) > 1:
        count = values.count("aten.coalesce", places, count, "distinct places")
    sorting = [torch.empty(places.size(1), dtype=torch.int64, device="cuda") for _ in ("places", "origins", "offsets")]
    scratch(radix_sort_bytes(places.size(1), 8, 8, 64))
    kept_rows, kept_places = rows.new_empty(count, *rows.shape[1:]), places.new_empty(places.size(0), count)
    del sorting
    return torch.sparse_coo_tensor(kept_places, kept_rows, x.shape, is_coalesced=True, check_invariants=False)


# What is known of results of operators that torch's own code has run, where no rule for all of them says it.
def follow(
    operator: str, given: Sequence[Tensor], made: Sequence[Tensor], numbers: Sequence[float | int | bool]
) -> None:
    """The operator, of those that are asked for by name (native/followed_operators.cpp), has made this of these tensors
    and numbers."""
    x, known = given[0], None
    if operator == "aten::topk":
        known = random_numbers.find_largest(x, int(numbers[0]), int(numbers[1]), bool(numbers[2]))
    elif operator == "aten::sort":  # how a program shuffles
        known = random_numbers.find_order(x, int(numbers[-2]), bool(numbers[-1]))
    elif operator == "aten::histc" and not x.is_floating_point():
        known = _count_in_bins(x, made[0], *numbers[1:3])
    elif operator == "aten::multinomial" and made[0].size(-1) == 1:  # one draw may be any place
        torch.ops.paper.presume_place(made[0], x.size(-1))
    elif operator in random_numbers.DRAWS:
        random_numbers.draw(x, operator, numbers)
    if known is not None:
        torch.ops.paper.remember_value(made[-1], known)


def _count_in_bins(x: Tensor, counts: Tensor, low: float, high: float) -> Tensor | None:
    bins = counts.numel()
    if (known := known_value(x)) is not None:
        return torch.histc(known.double(), bins, low, high).to(x.dtype)
    if low < high and values.may_assume("bins of whole numbers that nobody has get as many as each other"):
        return values.equal_shares(x.numel(), bins).to(x.dtype)
    return None
