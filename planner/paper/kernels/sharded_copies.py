"""How fully_shard copies gradients of several dtypes into the buffer that it reduces.

Source, torch 2.15: torch/csrc/distributed/fsdp/ChunkCat.cu, ChunkCat.cpp.
"""

from __future__ import annotations

import torch

from planner.paper.kernels.table import cuda, target

Tensor = torch.Tensor


@cuda("fsdp::chunk_cat_mixed_dtype")
def chunk_cat_mixed_dtype(tensors: list[Tensor], dim: int, num_chunks: int, *, out: Tensor) -> None:
    """One kernel copies what the buffer's dtype has and casts bfloat16 to float32; other mixtures are cast before."""
    mixed = len({each.dtype for each in tensors}) > 1
    if mixed and _is_one_kernel(tensors, dim, out):
        return
    torch._chunk_cat([each.to(out.dtype) for each in tensors] if mixed else tensors, dim, num_chunks, out=out)


def _is_one_kernel(tensors: list[Tensor], dim: int, out: Tensor) -> bool:
    castable = {out.dtype} | ({torch.bfloat16} if out.dtype == torch.float32 else set())
    whole = all(each.dim() and each.numel() and each.is_contiguous() for each in (*tensors, out))
    return not target().is_cpu and dim == 0 and whole and {each.dtype for each in tensors} <= castable
