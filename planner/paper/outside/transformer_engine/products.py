"""Products of matrices: the result if the caller has none, a gradient of the bias, and what a fused GELU needs.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/gemm.cpp (gemm, te_general_grouped_gemm). Workspaces of cuBLAS
are allocated and kept by the package's own Python code (pytorch/cpp_extensions/gemm.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from planner.paper.outside.operators import refuse, told
from planner.paper.outside.transformer_engine.enumerations import DTYPES, DType
from planner.paper.outside.transformer_engine.refusals import ALLOWED, refuse_quantized

Tensor = torch.Tensor
Maybe = Tensor | None


def _result_shape(a: Tensor, transposes_a: bool, b: Tensor, transposes_b: bool) -> tuple[int, ...]:
    """Outer dims are one, but those of B stay where B is not transposed. Raises RuntimeError if inner dims differ."""
    rows_a, columns_a = a.numel() // max(a.size(-1), 1), a.size(-1)
    rows_b, columns_b = b.numel() // max(b.size(-1), 1), b.size(-1)
    if (columns_a if transposes_a else rows_a) != (rows_b if transposes_b else columns_b):
        raise RuntimeError(f"Invalid matrix dimensions for GEMM (A={tuple(a.shape)}, B={tuple(b.shape)})")
    outer = (columns_b,) if transposes_b else tuple(b.shape[:-1])
    return *outer, rows_a if transposes_a else columns_a


def _written(out: Tensor) -> Tensor:
    torch.ops.paper.forget_value(out)
    return out


@told("transformer_engine::gemm")
def generic_gemm(
    A: Tensor, transA: bool, B: Tensor, transB: bool, D: Maybe, quantizer: Any,  # noqa: N803
    output_dtype: DType | None, bias: Maybe, bias_type: DType, gelu: bool, gelu_in: Maybe, grad: bool,  # noqa: ARG001
    workspace: Tensor, workspace_size: int, accumulate: bool, use_split_accumulator: bool,  # noqa: ARG001
    comm_overlap: Any = None, comm_type: Any = None, extra_output: Maybe = None,  # noqa: ARG001
    bulk_overlap: bool = False, alpha: float = 1.0, beta: float | None = None,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, gradient of the bias, input of GELU, extra output. Raises TraceError for fp8 and for overlapped
    communication, RuntimeError for shapes that do not fit."""
    refuse_quantized(A, B, D, quantizer)
    if comm_overlap is not None:
        refuse("generic_gemm of TransformerEngine", "communication that overlaps is not modelled", ALLOWED)
    shape = _result_shape(A, transA, B, transB)
    dtype = A.dtype if output_dtype is None else DTYPES[output_dtype]
    out = torch.empty(shape, dtype=dtype, device="cuda") if D is None else _written(D)
    of_bias = torch.empty(B.size(-1), dtype=out.dtype, device="cuda") if bias is not None and grad else None
    before_gelu = torch.empty(shape, dtype=out.dtype, device="cuda") if gelu and not grad else None
    return [out, of_bias, before_gelu, extra_output]


@told("transformer_engine::grouped_gemm")
def te_general_grouped_gemm(
    A: Sequence[Tensor], transA: bool, B: Sequence[Tensor], transB: bool,  # noqa: N803
    D: Sequence[Tensor] | None, dtype: DType, _splits: Sequence[int], _bias: Sequence[Tensor],  # noqa: N803
    _bias_type: DType, _single_output: bool, *_rest: Any,
) -> list[Tensor] | None:  # fmt: skip
    """The results, one a group, if the caller has none; None otherwise."""
    refuse_quantized(*A, *B, *(D or ()))
    if D is not None:
        for each in D:
            _written(each)
        return None
    kind = DTYPES[dtype]
    return [
        torch.empty(_result_shape(a, transA, b, transB), dtype=kind, device="cuda") for a, b in zip(A, B, strict=True)
    ]


def get_num_cublas_streams() -> int:
    """Source: common/util/multi_stream.cpp."""
    return 4
