"""Operators whose results are as large as the data says: known for data that came from the host, for other data of a
program the largest that there can be, refused otherwise.

Sources, torch 2.13: aten/src/ATen/native/cuda/Nonzero.cu, IndexKernel.cpp, Indexing.cu, Repeat.cu.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from planner.paper import values
from planner.paper.kernels.sorting import reduction_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch, target

Tensor = torch.Tensor


def known(tensor: Tensor) -> Tensor | None:
    """Its values on the host, if they are known: a view of them, which may be written to."""
    found: Tensor | None = torch.ops.paper.known_value(tensor) if tensor.is_cuda else tensor
    return found


@cuda("nonzero")
def nonzero(x: Tensor) -> Tensor:
    if x.numel() == 0:
        return _places(x, 0)
    found = known(x)
    if found is not None:
        where = found.nonzero()
        places = _places(x, len(where))
        places.t().copy_(where.t().contiguous())
        return places
    if (routed := values.places_of_nonzero(x)) is not None:
        out = _places(x, routed.size(0))
        out.copy_(routed)
        return out
    return _places(x, values.count_nonzero("aten.nonzero", x))


def _places(x: Tensor, count: int) -> Tensor:
    """They are counted; then there is room for the coordinates, dim by dim, and they are selected."""
    kept = x.contiguous()
    counter = torch.empty((), dtype=torch.int32, device="cuda")
    scratch(reduction_bytes(x.numel()))
    out = torch.empty(x.dim(), count, dtype=torch.int64, device="cuda").t()
    scratch(scan_bytes(x.numel(), 8))
    del kept, counter
    return out


@cuda("masked_scatter_backward")
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    """The gradients under the mask: as many as the source had values, all of which had a place."""
    shape = torch.broadcast_shapes(grad.shape, mask.shape)
    places = _places(mask.expand(shape), math.prod(sizes))
    selected = grad.new_empty(math.prod(sizes))
    del places
    return selected.view(list(sizes))


@cuda("masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape) or (1,)
    selected: Tensor = torch.ops.aten.index.Tensor(x.expand(shape), [mask.expand(shape)])
    return selected


@cuda("index.Tensor")
def index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """A mask becomes coordinates first, and places on the host are copied (torch 2.13, TensorAdvancedIndexing.cpp)."""
    places = as_places(indices)
    if not target().is_cpu:
        places = [place if place is None or place.is_cuda else place.to("cuda") for place in places]
    result: Tensor = like_meta("index.Tensor", x, places)
    if torch.ops.paper.follows_values() and not result.is_floating_point() and (found := known(x)) is not None:
        _follow(result, found, places)
    return result


def _follow(result: Tensor, x: Tensor, places: Sequence[Tensor | None]) -> None:
    """Of whole numbers that are known, those at known places are known."""
    found = [None if place is None else known(place) for place in places]
    if all(given is None or place is not None for place, given in zip(found, places, strict=True)):
        result.copy_(torch.ops.aten.index.Tensor(x, found))


def as_places(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The indices with every mask turned into coordinates, which only a mask from the host allows."""
    places: list[Tensor | None] = []
    for given in indices:
        if given is not None and given.dtype in (torch.bool, torch.uint8):
            places += given.nonzero().unbind(1)
        else:
            places.append(given)
    return places


@cuda("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Running sums of the repeats, then as many places as they come to."""
    found = known(repeats)
    if output_size is None and found is None:
        values.refuse_size_of("aten.repeat_interleave", repeats, remedy="say output_size: there is no largest size")
    sums = torch.empty_like(repeats, dtype=torch.int64)
    kept = scratch(scan_bytes(repeats.numel(), 8))
    size = int(found.sum()) if output_size is None and found is not None else output_size
    out = torch.empty(size or 0, dtype=repeats.dtype, device="cuda")
    del sums, kept
    return out
