"""Scratch memory of kernels whose size is decided by the kernel's tiles, and the names of those that nobody knows.

cuDNN is closed: what it asks for is not derived here. A kernel that takes an unknown workspace says so, and the trace
carries the names, so that a plan can widen its interval.
"""

from __future__ import annotations

from planner.paper import library
from planner.paper.kernels.table import target

_FLOAT = 4
_LOCK = 16


def unknown(kernel: str) -> None:
    """This kernel has taken a workspace of a size that is not known; nothing is counted for it."""
    library.load().paper_workspace_is_unknown(kernel.encode())


def forget() -> None:
    """A trace begins."""
    library.load().paper_forget_unknown_workspaces()


def met() -> tuple[str, ...]:
    """The kernels of this trace whose workspaces are not counted, sorted."""
    names: bytes = library.load().paper_unknown_workspaces()
    return tuple(names.decode().splitlines())


def memory_efficient_backward(
    *, batch_heads: int, rows: int, columns: int, head_dim: int, value_dim: int, is_float: bool
) -> int:
    """Bytes of the workspace of memory-efficient attention's backward: gradients of query, key and value in float32.

    The tiles are those of torch 2.13, mem_eff_attention/kernels/generate_kernels.py; their use is in
    mem_eff_attention/kernel_backward.h (workspace_size) and attention_backward.cu (how keys are split).
    """
    rows_tile, columns_tile, in_registers = _backward_tiles(max(head_dim, value_dim), is_float)
    splits = _ceil(columns, columns_tile)
    if batch_heads >= 256 and columns <= 2 * columns_tile:
        splits = 1
    accumulates = not in_registers and not is_float
    if accumulates:
        splits = max(1, min(splits, 200 // batch_heads))
    elements = _ceil(rows, rows_tile) * _ceil(head_dim, columns_tile) * (_LOCK // _FLOAT + rows_tile * columns_tile)
    if accumulates:
        padded = rows_tile * (_ceil(head_dim, rows_tile) + _ceil(value_dim, rows_tile))
        elements += splits * columns_tile * padded
    return batch_heads * _ceil(elements, 4) * 4 * _FLOAT


def _backward_tiles(head_dim: int, is_float: bool) -> tuple[int, int, bool]:
    """Rows and columns of a tile, and whether the gradients of key and value stay in registers."""
    largest = next(limit for limit in (32, 64, 128, 1 << 16) if head_dim <= limit)
    modern = target().capability >= (8, 0)
    rows = 128 if largest > 64 and (modern or (target().capability == (7, 0) and not is_float)) else 64
    if target().capability in ((8, 6), (8, 9), (12, 0)):
        rows = 64  # too little shared memory for the larger tile
    in_registers = not is_float and largest <= rows
    columns = 128 if modern and in_registers and largest > 64 else 64
    return rows, columns, in_registers


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
