"""Temporary bytes of cub's sorts, scans and sums (CCCL 12.9), for operators whose kernels cannot run without values."""

from __future__ import annotations

import torch

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
    gpu = torch.cuda.get_device_properties()
    blocks = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // 256)
    return _laid_out(blocks * _SUBSCRIPTION * 4)


def _onesweep_tile(key_bytes: int, value_bytes: int) -> int:
    widest, capability = max(key_bytes, value_bytes), torch.cuda.get_device_capability()
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
