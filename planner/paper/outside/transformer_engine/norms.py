"""Layer and RMS norms: a float32 statistic a row, and the backward's partial gradients of the weight.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/normalization.cpp, common/normalization/{common.h,
layernorm/ln_bwd_semi_cuda_kernel.cu, rmsnorm/rmsnorm_bwd_semi_cuda_kernel.cu}. How many blocks of threads a
multiprocessor holds is asked of the driver: registers of 128 threads allow for two at least, which are counted, and
the workspace is named as not known.
"""

from __future__ import annotations

from typing import Any

import torch

from planner.paper.kernels import workspaces
from planner.paper.kernels.table import scratch, target
from planner.paper.outside.operators import floats, told
from planner.paper.outside.transformer_engine.enumerations import DTYPES, DType
from planner.paper.outside.transformer_engine.refusals import refuse_quantized

Tensor = torch.Tensor
Maybe = Tensor | None

_FLOAT = 4
_BLOCKS = 2
_COLUMNS = 4096
"""Of a row that a block of threads has, in kernels for any width."""
_WHOLE_ROWS = 8192
"""RMS norms of a tuned kernel have up to so many in a block."""
_ALIGNED = 16


def _blocks_a_row(columns: int, *, has_mean: bool) -> int:
    if not has_mean and columns <= _WHOLE_ROWS:
        return 1
    return -(-columns // _COLUMNS)


def _forward(given: Tensor, weight: Tensor, out: Maybe, quantizer: Any, dtype: DType, *, has_mean: bool) -> list[Maybe]:
    refuse_quantized(given, weight, out, quantizer)
    rows = given.numel() // given.size(-1)
    mean = floats(given, rows) if has_mean else None
    spread = floats(given, rows)
    if out is None:
        out = torch.empty(given.shape, dtype=DTYPES[dtype], device="cuda")
    workspace = scratch(1)  # of wide rows some KiB, as blocks exchange figures
    del workspace
    return [out, mean, spread]


@told("transformer_engine::layernorm_fwd")
def layernorm_fwd(
    input: Tensor, weight: Tensor, bias: Maybe, eps: float, ln_out: Maybe, quantizer: Any,  # noqa: ARG001
    otype: DType, sm_margin: int, zero_centered_gamma: bool,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, means, one over the deviations."""
    return _forward(input, weight, ln_out, quantizer, otype, has_mean=True)


@told("transformer_engine::rmsnorm_fwd")
def rmsnorm_fwd(
    input: Tensor, weight: Tensor, eps: float, ln_out: Maybe, quantizer: Any, otype: DType,  # noqa: ARG001
    sm_margin: int, zero_centered_gamma: bool,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, None, one over the root mean squares."""
    return _forward(input, weight, ln_out, quantizer, otype, has_mean=False)


def _backward(grad: Tensor, given: Tensor, weight: Tensor, sm_margin: int, *, has_mean: bool) -> list[Tensor]:
    grad, given, weight = grad.contiguous(), given.contiguous(), weight.contiguous()
    made = [torch.empty_like(given), torch.empty_like(weight)]
    if has_mean:
        made.append(torch.empty_like(weight))
    columns = given.size(-1)
    multiprocessors = target().multiprocessors - sm_margin
    down = multiprocessors * _BLOCKS // _blocks_a_row(columns, has_mean=has_mean)
    partial = -(-down * columns * _FLOAT // _ALIGNED) * _ALIGNED
    kernel = f"TransformerEngine's {'layer' if has_mean else 'RMS'} norm, backward: beyond two blocks a multiprocessor"
    workspace = workspaces.take("transformer_engine", kernel, [given], at_least=partial * (len(made) - 1))
    del workspace
    return made


@told("transformer_engine::layernorm_bwd")
def layernorm_bwd(
    grad: Tensor, given: Tensor, _mean: Tensor, _spread: Tensor, weight: Tensor, sm_margin: int, _zero_centered: bool
) -> list[Tensor]:
    """Gradients of input, weight and bias."""
    return _backward(grad, given, weight, sm_margin, has_mean=True)


@told("transformer_engine::rmsnorm_bwd")
def rmsnorm_bwd(
    grad: Tensor, given: Tensor, _spread: Tensor, weight: Tensor, sm_margin: int, _zero_centered: bool
) -> list[Tensor]:
    """Gradients of input and weight."""
    return _backward(grad, given, weight, sm_margin, has_mean=False)


@told("transformer_engine::rmsnorm_bwd_add")
def rmsnorm_bwd_add(
    grad: Tensor, given: Tensor, added: Tensor, _spread: Tensor, weight: Tensor, sm_margin: int, _zero_centered: bool
) -> list[Tensor]:
    """As `rmsnorm_bwd`, with another gradient of the input added."""
    added = added.contiguous()
    return _backward(grad, given, weight, sm_margin, has_mean=False)
