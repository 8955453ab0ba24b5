"""Draws from given probabilities, and permutations.

Source, torch 2.13: aten/src/ATen/native/Distributions.cpp (multinomial_out), cuda/MultinomialKernel.cu,
cuda/Randperm.cu.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from planner.paper.kernels.ordering import select_largest
from planner.paper.kernels.sorting import radix_sort_bytes, scan_bytes
from planner.paper.kernels.table import cuda, scratch

Tensor = torch.Tensor
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
        return drawn
    values = x.new_empty(drawn.shape)
    select_largest(quotients, values, -1)
    return drawn


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
