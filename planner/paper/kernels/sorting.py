"""Sorts, largest values, running sums, draws and distinct values: what cub's sorts and scans take (CCCL 12.9)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from planner.paper import values
from planner.paper.kernels import random_numbers
from planner.paper.kernels.table import cuda, like_meta, scratch, target

_RADIX_BITS = 8
_DIGITS = 1 << _RADIX_BITS
_OFFSET = 8  # torch counts items in int64
_COUNTER = 4
_ALIGNMENT = 256
_SHARED_MEMORY = 48 * 1024
_SUBSCRIPTION = 5
"""CUB_SUBSCRIPTION_FACTOR (cub/util_arch.cuh)."""


def radix_sort_bytes(items: int, key_bytes: int, value_bytes: int, bits: int) -> int:
    """Temporary bytes of a radix sort of pairs, from outside place to outside place.

    Source: dispatch_radix_sort.cuh (InvokeSingleTile, InvokeOnesweep) and tuning_radix_sort.cuh. Few items are sorted
    by one block, which asks for one byte; recorded: 72,191 bytes for 4,096 pairs of int64 with 14 bits on sm_8x.
    """
    widest = max(key_bytes, value_bytes)
    if items <= _tile(256, 19, widest):
        return 1
    passes = -(-bits // _RADIX_BITS)
    tile = _onesweep_tile(key_bytes, value_bytes)
    portion = ((1 << 28) - 1) // tile * tile
    portions = -(-items // portion)
    kept_keys = items * key_bytes if passes > 1 else 0
    kept_values = items * value_bytes if passes > 1 else 0
    return _laid_out(
        portions * passes * _DIGITS * _OFFSET,
        -(-min(items, portion) // tile) * _DIGITS * _COUNTER,
        kept_keys,
        kept_values,
        portions * passes * _COUNTER,
    )


def scan_bytes(items: int, item_bytes: int) -> int:
    """Temporary bytes of a scan or of a selection: one status per tile and a warp's worth of them.

    Source: agent/single_pass_scan_operators.cuh (ScanTileState::AllocationSize). The tile is that of the default
    tuning, which tunings by architecture change; it is some kilobytes either way.
    """
    status = 8 if item_bytes <= 4 else 16
    tiles = -(-items // _tile(128, 15, max(4, item_bytes)))
    return _laid_out((tiles + 32) * status)


def reduction_bytes(items: int) -> int:
    """Temporary bytes of a sum to int32: one for each block that the GPU can hold, five times over.

    Source: dispatch_reduce.cuh (InvokePasses). As many blocks of 256 threads are taken to fit as threads do; registers
    may leave room for fewer. Few items are added by one block, which asks for one byte.
    """
    if items <= _tile(256, 16, 4):
        return 1
    blocks = target().multiprocessors * (target().threads_per_multiprocessor // 256)
    return _laid_out(blocks * _SUBSCRIPTION * 4)


def bits_of(highest: int) -> int:
    """get_num_bits: bits that numbers up to `highest` take (aten/src/ATen/cuda/cub.h)."""
    return max(1, highest).bit_length()


def _onesweep_tile(key_bytes: int, value_bytes: int) -> int:
    widest, capability = max(key_bytes, value_bytes), target().capability
    if capability >= (9, 0):
        items = (30 if value_bytes < 8 else 24) if key_bytes == 8 else (17 if value_bytes < 8 else 29)
        return _tile(384, items, widest)
    if capability >= (8, 0):
        return _tile(384, 17 if key_bytes == 4 else 21, widest)
    return _tile(256, 46 if key_bytes == value_bytes == 4 else 23, widest)


def _tile(threads: int, items_of_four_bytes: int, item_bytes: int) -> int:
    """RegBoundScaling of cub/util_arch.cuh: larger items, fewer of them for a thread."""
    items = max(1, items_of_four_bytes * 4 // max(4, item_bytes))
    warps = (_SHARED_MEMORY // (item_bytes * items) + 31) // 32
    return min(threads, warps * 32) * items


def _laid_out(*sizes: int) -> int:
    """AliasTemporaries of cub/util_temporary_storage.cuh: each part aligned, and room to align the whole."""
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes) + _ALIGNMENT - 1


# Source, torch 2.13: aten/src/ATen/native/cuda/Sort.cpp, Sort.h, SortStable.cu, TensorTopK.cpp, TensorTopK.cu,
# Sorting.cpp, ScanUtils.cuh, native/ReduceOps.cpp.
_SMALL = 4096
_LARGE = 1_000_000
_FEW_SEGMENTS = 128
_INDEX = 8
_ROWS_AND_LENGTHS = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (None, 400),
)  # fmt: skip
"""Up to so many rows, those from this length on are spread over blocks (should_use_multiblock)."""
_BLOCK, _SELECT_DIGITS = 256, 256
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
    scratch(radix_sort_bytes(count, _INDEX, 0, bits_of(rows - 1)))
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
        follow_topk(x, indices, k, dim, largest)
    return values, indices


def follow_topk(x: Tensor, indices: Tensor, k: int, dim: int, largest: bool) -> None:
    """Of numbers that were drawn, the places are known."""
    if (places := random_numbers.find_largest(x, k, dim, largest)) is not None:
        torch.ops.paper.remember_value(indices, places)


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
    sizes = [rows * item, rows * 4, 2 * rows * 4, 2 * rows * radix, blocks * _SELECT_DIGITS * 2, blocks * 4, blocks * 4]
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
        scratch(scan_bytes(x.numel(), kind.itemsize))
    del converted
    return result


# Source, torch 2.13: aten/src/ATen/native/Distributions.cpp (multinomial_out), cuda/MultinomialKernel.cu,
# cuda/Randperm.cu.
_INT32_BITS = 32
_SURE = 0.9
"""That of twelve keys none comes twice."""


@cuda("multinomial")
def multinomial(
    x: Tensor,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Any = None,  # noqa: ARG001
) -> Tensor:
    """Without replacement, or one draw: the probabilities divided by an exponential draw each, and the largest of them.
    Several draws with replacement: the probabilities, normalized ones and their running sums."""
    drawn = torch.empty(*x.shape[:-1], num_samples, dtype=torch.int64, device="cuda")
    if replacement and num_samples > 1:
        copies = [x.new_empty(x.shape) for _ in range(3)]
        if x.numel() == x.size(-1):
            scratch(scan_bytes(x.numel(), x.element_size()))
        del copies
        return drawn
    _check(x)
    quotients = torch.empty_like(x)
    if num_samples == 1:
        torch.argmax(quotients, -1, keepdim=True, out=drawn)
        follow_multinomial(x, drawn)
        return drawn
    values = x.new_empty(drawn.shape)
    select_largest(quotients, values, -1)
    return drawn


def follow_multinomial(x: Tensor, drawn: Tensor) -> None:
    """One draw may be any place."""
    if drawn.size(-1) == 1 and torch.ops.paper.follows_values():
        torch.ops.paper.presume(drawn, x.size(-1) // 2, True)


def _check(x: Tensor) -> None:
    """None is negative or infinite, and no row is all zeros; the device says so (`_assert_async`)."""
    lowest, highest = x.aminmax()
    fine = (lowest >= 0) & (highest < math.inf)
    del lowest, highest, fine
    sums = x.sum(-1)
    nothing = ~(sums == 0).any()
    del sums, nothing


@cuda("randperm.generator_out")
def permutation(n: int, *, generator: Any = None, out: Tensor) -> Tensor:  # noqa: ARG001
    """Numbers in order are sorted by random keys, with enough bits that few of them come twice."""
    torch.ops.paper.forget_value(out)
    out.resize_(n)
    if n == 0:
        return out
    numbers = out.new_empty(n)
    shuffled = None if out.is_contiguous() else out.new_empty(n)
    bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (12 * math.log(_SURE)))))
    kind = torch.int32 if bits <= _INT32_BITS else torch.int64
    keys = [torch.empty(n, dtype=kind, device="cuda") for _ in range(2)]
    taken = scratch(radix_sort_bytes(n, kind.itemsize, out.element_size(), bits))
    del taken, keys, shuffled, numbers
    return out


# Source, torch 2.13: aten/src/ATen/native/cuda/Unique.cu, UniqueCub.cu, SummaryOps.cu.
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
        counts = torch.zeros(bins, dtype=torch.int64, device="cuda")
        if torch.ops.paper.follows_values():
            shares = values.equal_shares(x.numel(), bins)
            torch.ops.paper.remember_value(counts, shares if known is None else known.bincount(minlength=minlength))
        return counts
    sums = torch.zeros(bins, dtype=torch.float32 if weights.dtype is torch.float32 else torch.float64, device="cuda")
    torch.ops.paper.forget_value(sums)
    return sums


@cuda("histc")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    counts = torch.zeros(bins, dtype=x.dtype, device="cuda")
    torch.ops.paper.forget_value(counts)
    follow_histc(x, counts, min, max)
    return counts


def follow_histc(x: Tensor, counts: Tensor, min: float, max: float) -> None:
    """Of whole numbers, those of every bin."""
    if torch.ops.paper.follows_values() and not x.is_floating_point():
        bins = counts.numel()
        if (known := _known(x)) is not None:
            torch.ops.paper.remember_value(counts, torch.histc(known.double(), bins, min, max).to(x.dtype))
        elif min < max and values.may_assume("bins of whole numbers that nobody has get as many as each other"):
            torch.ops.paper.remember_value(counts, values.equal_shares(x.numel(), bins).to(x.dtype))


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
