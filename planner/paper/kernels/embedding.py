"""Embedding: many indices are sorted, and rows that come often are added up in pieces."""

from __future__ import annotations

import torch

from planner.paper.kernels.sorting import bits_of, radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, like_meta, scratch, target
from planner.upstream import versions

_FEW_INDICES = 3072
_ROWS_PER_THREAD = 10
_LARGEST_BLOCK = 1024
_BLOCKS_PER_MULTIPROCESSOR = 4
_LARGEST_OF_A_BAG = 2
_INT64 = torch.int64


@cuda("embedding_dense_backward")
def embedding_dense_backward(
    gradient: torch.Tensor, indices: torch.Tensor, rows: int, _padding: int, by_frequency: bool
) -> torch.Tensor:
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
    gradient: torch.Tensor, indices: torch.Tensor, _bags: torch.Tensor, _sizes: torch.Tensor, _largest: torch.Tensor,
    rows: int, by_frequency: bool, mode: int, *_: object,
) -> torch.Tensor:  # fmt: skip
    """Source: torch 2.13 aten/src/ATen/native/cuda/EmbeddingBag.cu: as that of an embedding, for any number of indices.
    Where the largest of a bag was taken its row is known."""
    places = indices.contiguous()
    if places.numel() == 0 or mode == _LARGEST_OF_A_BAG:
        return gradient.new_empty(rows, gradient.size(-1))
    return _add_sorted(gradient, places, rows, by_frequency)


@cuda("_embedding_bag_backward")
def bag_backward(
    gradient: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, bags: torch.Tensor, sizes: torch.Tensor,
    largest: torch.Tensor, rows: int, by_frequency: bool, mode: int, sparse: bool, *rest: object,
) -> torch.Tensor:  # fmt: skip
    if sparse:
        given = gradient, indices, offsets, bags, sizes, largest, rows, by_frequency, mode, sparse, *rest
        result: torch.Tensor = like_meta("_embedding_bag_backward", *given)
        return result
    return embedding_bag_backward(gradient, indices, bags, sizes, largest, rows, by_frequency, mode)


def _add_sorted(gradient: torch.Tensor, places: torch.Tensor, rows: int, by_frequency: bool) -> torch.Tensor:
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


def _partial_sums(result: torch.Tensor, places: torch.Tensor) -> None:
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
    sums: tuple[torch.Tensor, ...]
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
    taken = scratch(scan_bytes(items, item_bytes))
    del taken


def _few_rows(segments: int, pieces: int, width: int) -> bool:
    """Whether atomics are used: the sums of the segments would leave multiprocessors idle."""
    if torch.are_deterministic_algorithms_enabled() or not versions.since(2, 11):
        return False
    warped = -(-width // 32) * 32
    blocks = -(-segments * warped // min(warped, _LARGEST_BLOCK))
    return blocks < target().multiprocessors * _BLOCKS_PER_MULTIPROCESSOR and pieces > blocks * 4
