"""Indexing: adding to places that may come twice sorts the places first, masks count theirs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from planner.paper.kernels.data_dependent import as_places, known
from planner.paper.kernels.sorting import bits_of, radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch

_INT64 = torch.int64


@cuda("_index_put_impl_")
def index_put(
    into: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """What `x[i] = y` and the backward of `x[i]` take.

    Source: torch 2.13 aten/src/ATen/native/cuda/Indexing.cu (index_put_with_sort_kernel), the same in 2.6 and 2.11:
    the places as whole numbers, sorted, with where they came from.
    """
    if values.numel() == 1 and not accumulate and len(indices) == 1 and _is_mask(indices[0]):
        _follow(into, indices, values, accumulate)
        return into  # a fill under a mask: no places are looked for
    indices = as_places(indices)
    _follow(into, indices, values, accumulate)
    if not accumulate and not torch.are_deterministic_algorithms_enabled():
        return into  # written where it lies, in one pass over the places
    whole = into if into.is_contiguous() else into.contiguous()
    places = _places(indices)
    if places is None or places.numel() == 0:
        return into
    rest = prod(
        size for size, index in zip(into.shape, _pad_indices(indices, into.dim()), strict=True) if index is None
    )
    needed = places.numel() * rest
    spread = values
    if values.numel() != needed or not values.is_contiguous():
        spread = torch.empty(needed, dtype=values.dtype, device="cuda")
    sorted_places, origins = torch.empty_like(places), torch.empty_like(places)
    numbers = torch.empty_like(places)
    highest = (into.numel() - 1) // _after(into, indices)
    taken = scratch(radix_sort_bytes(places.numel(), key_bytes=8, value_bytes=8, bits=bits_of(highest)))
    del taken, numbers, sorted_places, origins, spread, whole
    return into


def _follow(into: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool) -> None:
    """What is known of whole numbers stays known where known values are put at known places."""
    if any(index is not None and index.numel() == 0 for index in indices):
        return  # nothing is written
    kept = known(into) if torch.ops.paper.follows_values() else None
    places = [None if index is None else known(index) for index in indices]
    found = known(values)
    if kept is None or found is None or any((a is None) != (b is None) for a, b in zip(places, indices, strict=True)):
        torch.ops.paper.forget_value(into)
        return
    kept.index_put_(places, found, accumulate)  # a view of what is kept


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _pad_indices(indices: Sequence[torch.Tensor | None], dims: int) -> list[torch.Tensor | None]:
    return [*indices, *[None] * (dims - len(indices))]


def _after(into: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> int:
    """Elements behind one place: what the dims after the last index hold."""
    last = max(position for position, index in enumerate(indices) if index is not None)
    return prod(into.shape[last + 1 :])


def _places(indices: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Each index wrapped (remainder) and times its stride; the sum stays. The host does this for its own indices."""
    given = [index for index in indices if index is not None]
    if not given:
        return None
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    total: torch.Tensor | None = None
    for index in given:
        wrapped = torch.empty(shape, dtype=_INT64, device=index.device)
        scaled = torch.empty(shape, dtype=_INT64, device="cuda")
        del wrapped
        total = scaled if total is None else total
    return total


@cuda("masked_scatter_")
def masked_scatter(into: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Which value of the source comes to each place: running sums of the mask, in int64 for every element.

    Source: torch 2.13 aten/src/ATen/native/cuda/IndexKernel.cpp (masked_scatter__cuda), IndexKernel.cu
    (launch_masked_scatter_kernel).
    """
    if into.numel() == 0:
        return into
    sums = torch.empty(into.shape, dtype=_INT64, device="cuda")
    kept = mask.expand(into.shape).contiguous()
    taken = scratch(scan_bytes(into.numel(), _INT64.itemsize))
    del taken
    whole = source.contiguous()
    del kept, whole, sums
    return into


@cuda("scatter_reduce.two")
def scatter_reduce(
    into: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """A mean counts how many came to each place (torch 2.13, aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    result: torch.Tensor = like_meta("scatter_reduce.two", into, dim, index, source, reduce, include_self=include_self)
    if reduce == "mean" and index.numel() > 0:
        ones, counts = torch.empty_like(source), torch.empty_like(result)
        nowhere = torch.empty_like(counts, dtype=torch.bool)
        del ones, counts, nowhere
    return result
