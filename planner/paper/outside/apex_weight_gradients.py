"""apex's products that add a weight's gradient to one that is there: they allocate nothing.

Source, apex at the commit 6424da3 (2026-07): csrc/megatron/fused_weight_gradient_dense.cpp,
fused_weight_gradient_dense_cuda.cu. They take torch's handle of cuBLAS, with the workspace that torch's own product of
the same backward has taken before.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def wgrad_gemm_accum_fp32(input: Tensor, d_output: Tensor, d_weight: Tensor) -> None:  # noqa: ARG001
    """Adds to `d_weight` [out, in] the product of two tensors of the same outer dims."""
    torch.ops.paper.forget_value(d_weight)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32
