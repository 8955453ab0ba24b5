"""Kernels of the CPU that take nothing beside their results where those of a GPU do.

Source: torch 2.13 aten/src/ATen/native/cpu/SortingKernel.cpp, DistanceOpsKernel.cpp, IndexKernel.cpp, native/
EmbeddingBag.cpp, TensorFactories.cpp.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from planner.paper.kernels.table import cpu, like_meta

for _operator in ("topk", "_cdist_backward", "_pdist_backward", "_embedding_bag_backward"):
    cpu(_operator)(partial(like_meta, _operator))


@cpu("masked_scatter_")
def masked_scatter(into: torch.Tensor, _mask: torch.Tensor, _source: torch.Tensor) -> torch.Tensor:
    return into


@cpu("randperm.generator_out")
def permutation(n: int, *, out: torch.Tensor, **_: Any) -> torch.Tensor:
    torch.ops.paper.forget_value(out)
    return out.resize_(n)
