"""Indexing, masks and embeddings: sorted indices, counted masks, results as large as the data says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from planner.paper import values
from planner.paper.kernels.sorting import bits_of, radix_sort_bytes, reduction_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch, target
from planner.upstream import torch_releases

# Sources, torch 2.13: aten/src/ATen/native/cuda/Nonzero.cu, IndexKernel.cpp, Indexing.cu, Repeat.cu.


def known(tensor: Tensor) -> Tensor | None:
    """Its values on the host, if they are known: a view of them, which may be written to."""
    found: Tensor | None = torch.ops.paper.known_value(tensor) if tensor.is_cuda else tensor
    return found


@cuda("nonzero")
def nonzero(x: Tensor) -> Tensor:
    if x.numel() == 0:
        return _places_of_nonzero(x, 0)
    found = known(x)
    if found is not None:
        where = found.nonzero()
        places = _places_of_nonzero(x, len(where))
        places.t().copy_(where.t().contiguous())
        return places
    if (routed := values.places_of_nonzero(x)) is not None:
        out = _places_of_nonzero(x, routed.size(0))
        out.copy_(routed)
        return out
    return _places_of_nonzero(x, values.count_nonzero("aten.nonzero", x))


def _places_of_nonzero(x: Tensor, count: int) -> Tensor:
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
    places = _places_of_nonzero(mask.expand(shape), math.prod(sizes))
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
    follow_index(x, places, result)
    return result


def follow_index(x: Tensor, places: Sequence[Tensor | None], result: Tensor) -> None:
    """What is known of whole numbers that are picked."""
    if torch.ops.paper.follows_values() and not result.is_floating_point():
        if (found := known(x)) is not None:
            _follow_places(result, found, places)
        elif (everywhere := torch.ops.paper.presumed(x)) is not None:
            torch.ops.paper.presume(result, everywhere)


def _follow_places(result: Tensor, x: Tensor, places: Sequence[Tensor | None]) -> None:
    """Of whole numbers that are known, those at known places are known."""
    found = [None if place is None else known(place) for place in places]
    if all(given is None or place is not None for place, given in zip(found, places, strict=True)):
        torch.ops.paper.remember_value(result, torch.ops.aten.index.Tensor(x, found))


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


_INT64 = torch.int64


@cuda("_index_put_impl_")
def index_put(
    into: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
    unsafe: bool = False,  # noqa: ARG001
) -> Tensor:
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


def _follow(into: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> None:
    """What is known of whole numbers stays known where known values are put at known places."""
    if any(index is not None and (index.numel() == 0 or _is_empty_mask(index)) for index in indices):
        return  # nothing is written
    kept = known(into) if torch.ops.paper.follows_values() else None
    places = [None if index is None else known(index) for index in indices]
    found = known(values)
    if kept is None or found is None or any((a is None) != (b is None) for a, b in zip(places, indices, strict=True)):
        torch.ops.paper.forget_value(into)
        return
    kept.index_put_(places, found, accumulate)  # a view of what is kept


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _is_empty_mask(index: Tensor) -> bool:
    return _is_mask(index) and torch.ops.paper.presumed(index) == 0


def _pad_indices(indices: Sequence[Tensor | None], dims: int) -> list[Tensor | None]:
    return [*indices, *[None] * (dims - len(indices))]


def _after(into: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Elements behind one place: what the dims after the last index hold."""
    last = max(position for position, index in enumerate(indices) if index is not None)
    return prod(into.shape[last + 1 :])


def _places(indices: Sequence[Tensor | None]) -> Tensor | None:
    """Each index wrapped (remainder) and times its stride; the sum stays. The host does this for its own indices."""
    given = [index for index in indices if index is not None]
    if not given:
        return None
    shape = torch.broadcast_shapes(*(index.shape for index in given))
    total: Tensor | None = None
    for index in given:
        wrapped = torch.empty(shape, dtype=_INT64, device=index.device)
        scaled = torch.empty(shape, dtype=_INT64, device="cuda")
        del wrapped
        total = scaled if total is None else total
    return total


@cuda("masked_scatter_")
def masked_scatter(into: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Which value of the source comes to each place: running sums of the mask, in int64 for every element.

    Source: torch 2.13 aten/src/ATen/native/cuda/IndexKernel.cpp (masked_scatter__cuda), IndexKernel.cu
    (launch_masked_scatter_kernel).
    """
    if into.numel() == 0:
        return into
    sums = torch.empty(into.shape, dtype=_INT64, device="cuda")
    kept = mask.expand(into.shape).contiguous()
    scratch(scan_bytes(into.numel(), _INT64.itemsize))
    whole = source.contiguous()
    del kept, whole, sums
    return into


@cuda("scatter_reduce.two")
def scatter_reduce(
    into: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A mean counts how many came to each place (torch 2.13, aten/src/ATen/native/TensorAdvancedIndexing.cpp)."""
    result: Tensor = like_meta("scatter_reduce.two", into, dim, index, source, reduce, include_self=include_self)
    if reduce == "mean" and index.numel() > 0:
        ones, counts = torch.empty_like(source), torch.empty_like(result)
        nowhere = torch.empty_like(counts, dtype=torch.bool)
        del ones, counts, nowhere
    return result


_FEW_INDICES = 3072
_ROWS_PER_THREAD = 10
_LARGEST_BLOCK = 1024
_BLOCKS_PER_MULTIPROCESSOR = 4
_LARGEST_OF_A_BAG = 2


@cuda("embedding_dense_backward")
def embedding_dense_backward(gradient: Tensor, indices: Tensor, rows: int, _padding: int, by_frequency: bool) -> Tensor:
    """Source: torch 2.13 aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu.

    Up to 3,072 indices take nothing. More are sorted, and partial sums of up to ten rows are kept in float32: about a
    row for every different index. Since torch 2.11 few of them are added with atomics (`_few_rows`).
    """
    places, count = indices.contiguous(), indices.numel()
    whole = gradient.contiguous()
    if count <= _FEW_INDICES and not by_frequency:
        return gradient.new_empty(rows, gradient.size(-1))
    result = _add_sorted(whole, places, rows, by_frequency)
    del whole
    return result


@cuda("_embedding_bag_dense_backward")
def embedding_bag_backward(
    gradient: Tensor, indices: Tensor, _bags: Tensor, _sizes: Tensor, _largest: Tensor,
    rows: int, by_frequency: bool, mode: int, *_: object,
) -> Tensor:  # fmt: skip
    """Source: torch 2.13 aten/src/ATen/native/cuda/EmbeddingBag.cu: as that of an embedding, for any number of indices.
    Where the largest of a bag was taken its row is known."""
    places = indices.contiguous()
    if places.numel() == 0 or mode == _LARGEST_OF_A_BAG:
        return gradient.new_empty(rows, gradient.size(-1))
    return _add_sorted(gradient, places, rows, by_frequency)


@cuda("_embedding_bag_backward")
def bag_backward(
    gradient: Tensor, indices: Tensor, offsets: Tensor, bags: Tensor, sizes: Tensor,
    largest: Tensor, rows: int, by_frequency: bool, mode: int, sparse: bool, *rest: object,
) -> Tensor:  # fmt: skip
    if sparse:
        given = gradient, indices, offsets, bags, sizes, largest, rows, by_frequency, mode, sparse, *rest
        result: Tensor = like_meta("_embedding_bag_backward", *given)
        return result
    return embedding_bag_backward(gradient, indices, bags, sizes, largest, rows, by_frequency, mode)


def _add_sorted(gradient: Tensor, places: Tensor, rows: int, by_frequency: bool) -> Tensor:
    sorted_places, origins = torch.empty_like(places), torch.empty_like(places)
    numbers = torch.empty_like(places)
    size = places.element_size()
    taken = scratch(radix_sort_bytes(places.numel(), key_bytes=size, value_bytes=size, bits=bits_of(rows)))
    del taken, numbers
    counts = torch.empty_like(places) if by_frequency else None
    result = gradient.new_empty(rows, gradient.size(-1))
    _partial_sums(result, places)
    del sorted_places, origins, counts
    return result


def _partial_sums(result: Tensor, places: Tensor) -> None:
    count, (rows, width) = places.numel(), result.shape
    segments = min(count, rows)
    pieces = count // _ROWS_PER_THREAD + segments
    starts = places.new_empty(count)
    number_of_segments = torch.empty((), dtype=_INT64, device="cuda")
    _select(count, places.element_size())
    per_segment = places.new_empty(segments)
    offsets = places.new_empty(segments)
    _scan(segments, places.element_size())
    number_of_pieces = torch.empty((), dtype=_INT64, device="cuda")
    piece_starts = places.new_empty(pieces)
    sums: tuple[Tensor, ...]
    wide = torch.float32 if result.element_size() == 2 else result.dtype
    if _few_rows(segments, pieces, width):
        owners = places.new_empty(pieces)
        sums = (owners,) if wide is result.dtype else (owners, torch.empty(rows, width, dtype=wide, device="cuda"))
    else:
        sums = (torch.empty(pieces, width, dtype=wide, device="cuda"),)
    del sums, starts, number_of_segments, per_segment, offsets, number_of_pieces, piece_starts


def _select(items: int, item_bytes: int) -> None:
    keys = scratch(items * item_bytes)
    taken = scratch(scan_bytes(items, 4))
    del keys, taken


def _scan(items: int, item_bytes: int) -> None:
    scratch(scan_bytes(items, item_bytes))


def _few_rows(segments: int, pieces: int, width: int) -> bool:
    """Whether atomics are used: the sums of the segments would leave multiprocessors idle."""
    if torch.are_deterministic_algorithms_enabled() or not torch_releases.since(2, 11):
        return False
    warped = -(-width // 32) * 32
    blocks = -(-segments * warped // min(warped, _LARGEST_BLOCK))
    return blocks < target().multiprocessors * _BLOCKS_PER_MULTIPROCESSOR and pieces > blocks * 4
