"""For `--kernels`: what Megatron-LM calls of apex to add a product to a weight's gradient."""

from __future__ import annotations

from typing import Any


def register(kernels: Any) -> None:
    """Each writes to a gradient that it is given, and allocates nothing."""
    fused = {f"wgrad_gemm_accum_fp{bits}": lambda *_tensors: None for bits in (16, 32)}
    kernels.module("fused_weight_gradient_mlp_cuda", **fused)
