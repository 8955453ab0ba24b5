"""Grouped matrix products, which mixtures of experts run on: one kernel in bf16 on Hopper, a loop elsewhere.

Source, torch 2.13: aten/src/ATen/native/cuda/GroupedBlas.cpp, GroupMM.cu, native/GroupedMMUtils.h.
"""

from __future__ import annotations

import torch

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import cuda, target

Tensor = torch.Tensor

_ALIGNMENT_BYTES = 16


@cuda("_grouped_mm")
def grouped_mm(
    a: Tensor, b: Tensor, offsets: Tensor | None = None, _bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Rows of the result begin at multiples of 16 bytes."""
    shape = _shape(a, b, offsets)
    kind = dtype or a.dtype
    width = shape[-1]
    step = _ALIGNMENT_BYTES // kind.itemsize
    padded = -(-width // step) * step
    strides = (shape[-2] * padded, padded, 1)[-len(shape) :]
    out = torch.empty_strided(shape, strides, dtype=kind, device="cuda")
    if {a.dtype, b.dtype, kind} == {torch.bfloat16} and target().capability in ((9, 0), (10, 0)):
        groups = f"groups={offsets.size(0) if offsets is not None else a.size(0)}"
        workspace = workspaces.take("cutlass", "grouped matrix product: its table of groups", [a, b], groups)
        del workspace
    else:
        _first_product(a, b, out)
    return out


def _shape(a: Tensor, b: Tensor, offsets: Tensor | None) -> tuple[int, ...]:
    if a.dim() == 3 and b.dim() == 3:
        return a.size(0), a.size(1), b.size(2)
    if a.dim() == 2 and b.dim() == 2:
        assert offsets is not None
        return offsets.size(0), a.size(0), b.size(1)
    return a.size(-2), b.size(-1)


def _first_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The loop writes each group's product in its place; the first takes the workspace of the handle."""
    if a.dim() == 2 and b.dim() == 2:
        a, b = a.narrow(1, 0, 1), b.narrow(0, 0, 1)
    elif a.dim() == 2:
        a, out = a.narrow(0, 0, 1), out.narrow(0, 0, 1)
    elif b.dim() == 2:
        b, out = b.narrow(1, 0, 1), out.narrow(1, 0, 1)
    first = [t[0] if t.dim() == 3 else t for t in (a, b, out)]
    torch.mm(first[0], first[1], out=first[2])
