"""TransformerEngine's kernels and enumerations: what they allocate, and what of them is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch

from planner.paper import library
from planner.paper.kernels import workspaces
from planner.paper.kernels.attention import backward_workspace, forward_workspace
from planner.paper.kernels.table import scratch, target
from planner.paper.outside.operators import floats, refuse, told

# Source, TransformerEngine 2.11: pytorch/csrc/extensions/multi_tensor/{l2norm,scale,adam,sgd}.cpp.
Tensor = torch.Tensor
Lists = Sequence[Sequence[Tensor]]

_PARTS = 320


@told("transformer_engine::multi_tensor_l2norm")
def multi_tensor_l2norm(
    chunk_size: int, _noop: Tensor, lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of all, and with `per_tensor` those of each."""
    first = lists[0][0]
    accumulator = torch.zeros(_PARTS, dtype=torch.float32, device="cuda")
    whole = floats(first, 1)
    count = len(lists[0]) if per_tensor else 0
    chunks = max((-(-each.numel() // chunk_size) for each in lists[0]), default=0)
    parts = floats(first, count * chunks)
    each_of_them = floats(first, count)
    del accumulator, parts
    return whole, each_of_them


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop: Tensor, lists: Lists, _scale: Tensor, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """As `multi_tensor_l2norm`."""
    made: tuple[Tensor, Tensor] = multi_tensor_l2norm(chunk_size, noop, lists, per_tensor)
    return made


def in_place(_chunk_size: int, _noop: Tensor, lists: Lists, *_settings: Any) -> None:
    """Writes to the last list of tensors, and to others of its lists."""
    for each in lists[-1]:
        torch.ops.paper.forget_value(each)


# Source, TransformerEngine 2.11: transformer_engine/common/util/pybind_helper.h, common/include/transformer_engine/
# {transformer_engine,fused_attn,comm_gemm_overlap}.h, pytorch/csrc/common.h.
class DType(IntEnum):
    kByte = 0  # noqa: N815
    kInt16 = 1  # noqa: N815
    kInt32 = 2  # noqa: N815
    kInt64 = 3  # noqa: N815
    kFloat32 = 4  # noqa: N815
    kFloat16 = 5  # noqa: N815
    kBFloat16 = 6  # noqa: N815
    kFloat8E4M3 = 7  # noqa: N815
    kFloat8E5M2 = 8  # noqa: N815
    kFloat8E8M0 = 9  # noqa: N815
    kFloat4E2M1 = 10  # noqa: N815


DTYPES = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kInt64: torch.int64,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}
"""Those of torch that are not quantized."""


NVTE_Bias_Type = IntEnum(
    "NVTE_Bias_Type", ["NVTE_NO_BIAS", "NVTE_PRE_SCALE_BIAS", "NVTE_POST_SCALE_BIAS", "NVTE_ALIBI"], start=0
)
NVTE_Mask_Type = IntEnum(
    "NVTE_Mask_Type",
    ["NVTE_NO_MASK", "NVTE_PADDING_MASK", "NVTE_CAUSAL_MASK", "NVTE_PADDING_CAUSAL_MASK",
     "NVTE_CAUSAL_BOTTOM_RIGHT_MASK", "NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK"],
    start=0,
)  # fmt: skip
NVTE_Softmax_Type = IntEnum(
    "NVTE_Softmax_Type", ["NVTE_VANILLA_SOFTMAX", "NVTE_OFF_BY_ONE_SOFTMAX", "NVTE_LEARNABLE_SOFTMAX"], start=0
)
NVTE_QKV_Format = IntEnum(
    "NVTE_QKV_Format",
    ["NVTE_SBHD", "NVTE_BSHD", "NVTE_THD", "NVTE_BSHD_2SBHD", "NVTE_SBHD_2BSHD", "NVTE_THD_2BSHD", "NVTE_THD_2SBHD"],
    start=0,
)
NVTE_QKV_Layout = IntEnum(
    "NVTE_QKV_Layout",
    ["NVTE_SB3HD", "NVTE_SBH3D", "NVTE_SBHD_SB2HD", "NVTE_SBHD_SBH2D", "NVTE_SBHD_SBHD_SBHD", "NVTE_BS3HD",
     "NVTE_BSH3D", "NVTE_BSHD_BS2HD", "NVTE_BSHD_BSH2D", "NVTE_BSHD_BSHD_BSHD", "NVTE_T3HD", "NVTE_TH3D",
     "NVTE_THD_T2HD", "NVTE_THD_TH2D", "NVTE_THD_THD_THD", "NVTE_SBHD_BSHD_BSHD", "NVTE_BSHD_SBHD_SBHD",
     "NVTE_THD_BSHD_BSHD", "NVTE_THD_SBHD_SBHD", "NVTE_Paged_KV_BSHD_BSHD_BSHD", "NVTE_Paged_KV_BSHD_SBHD_SBHD",
     "NVTE_Paged_KV_SBHD_BSHD_BSHD", "NVTE_Paged_KV_SBHD_SBHD_SBHD", "NVTE_Paged_KV_THD_BSHD_BSHD",
     "NVTE_Paged_KV_THD_SBHD_SBHD"],
    start=0,
)  # fmt: skip
NVTE_Fused_Attn_Backend = IntEnum(
    "NVTE_Fused_Attn_Backend",
    {"NVTE_No_Backend": -1, "NVTE_F16_max512_seqlen": 0, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2},
)
Float8BlockScaleTensorFormat = IntEnum("Float8BlockScaleTensorFormat", ["GEMM_READY", "COMPACT"], start=0)
CommOverlapType = IntEnum("CommOverlapType", ["RS", "AG"], start=0)
CommOverlapAlgo = IntEnum(
    "CommOverlapAlgo",
    ["BULK_OVERLAP_AG", "BULK_OVERLAP_RS", "SPLIT_PIPELINED_AG_P2P", "SPLIT_PIPELINED_RS", "SPLIT_PIPELINED_RS_P2P",
     "ATOMIC_GEMM_RS", "ATOMIC_GEMM_AG_P2P", "ATOMIC_GEMM_RS_P2P", "EXTERNAL_BULK_OVERLAP_AG"],
    start=0,
)  # fmt: skip
FP8FwdTensors = IntEnum(
    "FP8FwdTensors",
    ["GEMM1_INPUT", "GEMM1_WEIGHT", "GEMM1_OUTPUT", "GEMM2_INPUT", "GEMM2_WEIGHT", "GEMM2_OUTPUT", "GEMM3_INPUT",
     "GEMM3_WEIGHT", "GEMM3_OUTPUT"],
    start=0,
)  # fmt: skip
FP8BwdTensors = IntEnum(
    "FP8BwdTensors",
    ["GRAD_OUTPUT1", "GRAD_INPUT1", "GRAD_OUTPUT2", "GRAD_INPUT2", "GRAD_OUTPUT3", "GRAD_INPUT3"],
    start=0,
)


ALLOWED = "training in bfloat16, float16 or float32 of dense layers, with --bf16 or --fp16 and no --fp8-format"


def refuse_quantized(*values: Any) -> None:
    """Raises TraceError if one of the values is a quantizer or a quantized tensor: neither is None or torch's own."""
    for value in values:
        if value is not None and type(value) not in (torch.Tensor, torch.nn.Parameter):
            refuse("TransformerEngine", f"{type(value).__name__} (fp8, nvfp4, mxfp8) is not modelled", ALLOWED)


def refused_function(name: str) -> Callable[..., Any]:
    """A function of this name that raises TraceError when it is called."""

    def call(*_arguments: Any, **_named: Any) -> Any:
        refuse(f"{name} of TransformerEngine", "its allocations are not modelled", ALLOWED)

    call.__name__ = name
    return call


def refused_class(name: str) -> type:
    """A class of this name, for annotations and `isinstance`, of which nobody makes an object: TraceError."""

    def make(_self: Any, *_arguments: Any, **_named: Any) -> None:
        refuse(f"{name} of TransformerEngine", "communication that overlaps with products is not modelled", ALLOWED)

    return type(name, (), {"__init__": make})


_FIRST, _LAST = (2, 10), (2, 13)
# Source, TransformerEngine 2.11: pytorch/csrc/extensions/attention.cpp, common/fused_attn/{fused_attn.cpp,
# fused_attn_f16_arbitrary_seqlen.cu}. The workspace is taken as that of torch's attention of cuDNN. Arguments come by
# position in an order that differs between versions.
_DIAGONAL = (2, 12)
"""Since when the corner is an argument at which a causal mask begins."""

_QUESTION = (
    "is_training", "q_dtype", "kv_dtype", "layout", "bias", "mask", "softmax", "dropout", "heads", "groups", "rows",
    "columns", "head_dim", "value_dim", "left", "right", "return_max_logit", "cuda_graph", "deterministic",
)  # fmt: skip
_FORWARD = (
    "rows", "columns", "is_training", "scale", "dropout", "set_zero", "layout", "bias_type", "mask", "softmax",
    "window", "bottom_right", "lengths_q", "lengths_kv", "q", "k", "v", "dtype", "padded_q", "padded_kv", "pages_k",
    "pages_v", "s_quantizer", "o_quantizer", "bias", "offset", "generator", "numbers", "return_max_logit", "cuda_graph",
)  # fmt: skip
_BACKWARD = (
    "rows", "columns", "scale", "dropout", "set_zero", "layout", "bias_type", "mask", "softmax", "window",
    "bottom_right", "deterministic", "lengths_q", "lengths_kv", "q", "k", "v", "out", "grad", "dtype", "grad_dtype",
    "kept", "padded_q", "padded_kv", "s_quantizer", "dp_quantizer", "dqkv_quantizer", "cuda_graph",
)  # fmt: skip


@cache
def _release() -> tuple[int, int]:
    """The installed package's. Raises TraceError for one whose arguments are not known."""
    whole = version("transformer_engine")
    major, minor = (int(each) for each in whole.split(".")[:2])
    if not _FIRST <= (major, minor) <= _LAST:
        refuse(
            f"attention of TransformerEngine {whole}",
            "its extension is not known",
            f"transformer-engine {'.'.join(map(str, _FIRST))} to {'.'.join(map(str, _LAST))}",
        )
    return major, minor


def _named(names: tuple[str, ...], values: tuple[Any, ...]) -> SimpleNamespace:
    """The arguments of a call by their names, in the order of the installed version."""
    if _release() < _DIAGONAL:
        names = tuple(each for each in names if each != "bottom_right")
    return SimpleNamespace(**dict(zip(names, values, strict=False)))


def get_cudnn_version() -> int:
    """As torch's own (`torch.backends.cudnn.version`)."""
    return int(library.load().paper_cudnn_version())


def get_fused_attn_backend(*values: Any) -> NVTE_Fused_Attn_Backend:
    """The backend for sequences of any length where it has a kernel that is modelled, otherwise none, so that the
    package takes another of its ways or says that it has none."""
    asked = _named(_QUESTION, values)
    modelled = (
        asked.q_dtype in (DType.kFloat16, DType.kBFloat16)
        and target().capability >= (8, 0)
        and asked.head_dim % 8 == 0
        and asked.value_dim % 8 == 0
        and _has_width(asked.head_dim, asked.value_dim)
        and asked.bias == NVTE_Bias_Type.NVTE_NO_BIAS
        and asked.softmax == NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX
    )
    return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen if modelled else NVTE_Fused_Attn_Backend.NVTE_No_Backend


def _has_width(head_dim: int, value_dim: int) -> bool:
    """With cuDNN 9.11 and later, in training."""
    if head_dim <= 128 and value_dim <= 128:
        return True
    if target().capability[0] == 9:
        return head_dim == value_dim <= 256
    return target().capability[0] >= 10 and (head_dim, value_dim) == (192, 128)


def _check(call: SimpleNamespace) -> None:
    refuse_quantized(call.q, call.k, call.v, call.s_quantizer)
    layout = NVTE_QKV_Layout(call.layout).name
    if "THD" in layout or "T3HD" in layout or "TH3D" in layout or "Paged" in layout:
        refuse(
            "fused attention of TransformerEngine", f"packed or paged sequences ({layout}) are not modelled", ALLOWED
        )
    if call.bias_type != NVTE_Bias_Type.NVTE_NO_BIAS or call.softmax != NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX:
        refuse("fused attention of TransformerEngine", "a bias and sinks are not modelled", ALLOWED)


def _in_heads(call: SimpleNamespace) -> list[Tensor]:
    """Query, key and value as [batch, heads, rows, head dim]; views."""
    rows_first = "NVTE_SB" in NVTE_QKV_Layout(call.layout).name
    return [each.permute((1, 2, 0, 3) if rows_first else (0, 2, 1, 3)) for each in (call.q, call.k, call.v)]


@told("transformer_engine::fused_attn_fwd")
def fused_attn_fwd(*values: Any) -> list[Tensor]:
    """Result, statistics [batch, heads, rows, 1], seed."""
    call = _named(_FORWARD, values)
    _check(call)
    if call.return_max_logit:
        refuse("fused attention of TransformerEngine", "return_max_logit is not modelled", ALLOWED)
    query, key, value = _in_heads(call)
    out = torch.empty((*call.q.shape[:-1], call.v.size(-1)), dtype=call.q.dtype, device="cuda")
    seed = torch.empty(2, dtype=torch.int64, device="cuda")
    causal = "CAUSAL" in NVTE_Mask_Type(call.mask).name
    workspace = forward_workspace(
        query, key, value, bias=False, with_lse=call.is_training, dropout=call.dropout, causal=causal
    )
    workspace = scratch(1) if workspace is None else workspace
    statistics = floats(query, query.size(0), query.size(1), call.rows, 1)
    del workspace
    return [out, statistics, seed]


@told("transformer_engine::fused_attn_bwd")
def fused_attn_bwd(*values: Any) -> list[Tensor | None]:
    """Gradients of query, key and value, laid out together where these are; of a bias, of sinks: none."""
    call = _named(_BACKWARD, values)
    _check(call)
    grads = _gradients(call)
    workspace = backward_workspace(*_in_heads(call))
    workspace = scratch(1) if workspace is None else workspace
    del workspace
    return [*grads, None, None]


def _gradients(call: SimpleNamespace) -> list[Tensor]:
    """Of tensors that lie in one another (SB3HD, SBHD_SB2HD, ...) one tensor is made."""
    layout = NVTE_QKV_Layout(call.layout).name.removeprefix("NVTE_")

    def together(like: Tensor, parts: int, dim: int) -> list[Tensor]:
        place = like.dim() + dim + 1
        shape = [*like.shape[:place], parts, *like.shape[place:]]
        return list(torch.empty(shape, dtype=call.q.dtype, device="cuda").unbind(place))

    def alone(like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=call.q.dtype, device="cuda")

    if "3" in layout:
        return together(call.q, 3, -3 if "3HD" in layout else -2)
    if "2" in layout:
        return [alone(call.q), *together(call.k, 2, -3 if "2HD" in layout else -2)]
    return [alone(each) for each in (call.q, call.k, call.v)]


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/normalization.cpp, common/normalization/{common.h,
# layernorm/ln_bwd_semi_cuda_kernel.cu, rmsnorm/rmsnorm_bwd_semi_cuda_kernel.cu}. How many blocks of threads a
# multiprocessor holds is asked of the driver: registers of 128 threads allow for two at least, which are counted, and
# the workspace is named as not known.
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
    grad: Tensor,
    given: Tensor,
    _mean: Tensor,
    _spread: Tensor,
    weight: Tensor,
    sm_margin: int,
    _zero_centered: bool,
) -> list[Tensor]:
    """Gradients of input, weight and bias."""
    return _backward(grad, given, weight, sm_margin, has_mean=True)


@told("transformer_engine::rmsnorm_bwd")
def rmsnorm_bwd(
    grad: Tensor,
    given: Tensor,
    _spread: Tensor,
    weight: Tensor,
    sm_margin: int,
    _zero_centered: bool,
) -> list[Tensor]:
    """Gradients of input and weight."""
    return _backward(grad, given, weight, sm_margin, has_mean=False)


@told("transformer_engine::rmsnorm_bwd_add")
def rmsnorm_bwd_add(
    grad: Tensor,
    given: Tensor,
    added: Tensor,
    _spread: Tensor,
    weight: Tensor,
    sm_margin: int,
    _zero_centered: bool,
) -> list[Tensor]:
    """As `rmsnorm_bwd`, with another gradient of the input added."""
    added = added.contiguous()
    return _backward(grad, given, weight, sm_margin, has_mean=False)


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/gemm.cpp (gemm, te_general_grouped_gemm). Workspaces of
# cuBLAS are allocated and kept by the package's own Python code (pytorch/cpp_extensions/gemm.py).
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


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/{activation,bias,apply_rope,softmax,dropout,transpose}.cpp.
PLAIN = ("gelu", "qgelu", "relu", "srelu", "silu")
GATED = ("geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu")
"""Activations that halve the last dim."""


def activation(name: str, parts: int) -> Callable[..., Tensor]:
    """The forward of an activation, whose last dim is that of its input divided by `parts`."""

    @told(f"transformer_engine::{name}")
    def forward(input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        refuse_quantized(input, quantizer)
        given = input.contiguous()
        return torch.empty((*given.shape[:-1], given.size(-1) // parts), dtype=given.dtype, device="cuda")

    return forward


def gradient(name: str) -> Callable[..., Tensor]:
    """The backward of an activation: the gradient of its input."""

    @told(f"transformer_engine::{name}")
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        refuse_quantized(grad, fwd_input, quantizer)
        grad, given = grad.contiguous(), fwd_input.contiguous()
        return torch.empty(given.shape, dtype=given.dtype, device="cuda")

    return backward


def gradient_with_bias(name: str) -> Callable[..., list[Tensor]]:
    """The backward of an activation after a bias: gradients of the bias and of the activation's input."""
    of_input = gradient(name.removeprefix("dbias_"))

    @told(f"transformer_engine::{name}")
    def backward(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Tensor]:
        refuse_quantized(grad, fwd_input, quantizer)
        made = of_input(grad, fwd_input, None)
        return [made.sum(tuple(range(made.dim() - 1))), made]

    return backward


@told("transformer_engine::bgrad_quantize")
def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Tensor]:
    """The gradient of a bias, and its input as it is where nothing is quantized."""
    refuse_quantized(input, quantizer)
    return [input.sum(tuple(range(input.dim() - 1))), input]


def _rotated(given: Tensor, frequencies: Tensor, places: Maybe, lengths: Maybe) -> Tensor:
    if frequencies.dim() != 4 or frequencies.dtype != torch.float32:
        raise RuntimeError("Dtype of the freqs tensor must be float, of four dims")
    if places is not None or lengths is not None:
        refuse("fused_rope of TransformerEngine", "places of its own and packed sequences are not modelled", ALLOWED)
    return torch.empty(given.shape, dtype=given.dtype, device="cuda")


@told("transformer_engine::fused_rope_forward")
def fused_rope_forward(
    given: Tensor,
    frequencies: Tensor,
    places: Maybe,
    _form: Any,
    _interleaved: bool,
    lengths: Maybe,
    *_ranks: int,
) -> Tensor:
    """The rotated tensor, dense."""
    return _rotated(given, frequencies, places, lengths)


@told("transformer_engine::fused_rope_backward")
def fused_rope_backward(
    grad: Tensor,
    frequencies: Tensor,
    places: Maybe,
    _form: Any,
    _interleaved: bool,
    lengths: Maybe,
    *_ranks: int,
) -> Tensor:
    """The gradient of its input, dense."""
    return _rotated(grad, frequencies, places, lengths)


@told("transformer_engine::fused_qkv_rope_forward")
def fused_qkv_rope_forward(
    given: Tensor,
    _of_query: Tensor,
    _of_key: Tensor,
    _places: Maybe,
    splits: Sequence[int],
    *_settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query and key rotated, and value, of one tensor [.., .., groups, dims of the three]."""
    queries, key, value = splits

    def made(heads: int, dims: int) -> Tensor:
        return torch.empty((*given.shape[:2], heads, dims), dtype=given.dtype, device="cuda")

    heads = given.size(2)
    return made(heads * queries // key, key), made(heads, key), made(heads, value)


@told("transformer_engine::fused_qkv_rope_backward")
def fused_qkv_rope_backward(
    of_query: Tensor, of_key: Tensor, of_value: Tensor, _frequencies: Tensor, _others: Tensor, splits: Sequence[int],
    *_settings: Any,
) -> Tensor:  # fmt: skip
    """The gradient of the one tensor."""
    dims = sum(splits)
    heads = (of_query.size(2) + of_key.size(2) + of_value.size(2)) * of_query.size(3) // dims
    return torch.empty((*of_query.shape[:2], heads, dims), dtype=of_query.dtype, device="cuda")


@told("transformer_engine::softmax_fwd")
def softmax_forward(given: Tensor, *_rest: Any) -> Tensor:
    """Probabilities of the shape of the scores."""
    return torch.empty(given.shape, dtype=given.dtype, device="cuda")


@told("transformer_engine::softmax_bwd")
def softmax_backward(grad: Tensor, kept: Tensor, *_rest: Any) -> Tensor:
    """In place of the gradient, which is made dense before."""
    grad, kept = grad.contiguous(), kept.contiguous()
    return grad


@told("transformer_engine::dropout_fwd")
def dropout_fwd(input: Tensor, dropout_probability: float, out: Maybe = None) -> list[Tensor]:  # noqa: ARG001
    """Result, and a mask of one bit an element."""
    if out is None:
        out = torch.empty(input.shape, dtype=input.dtype, device="cuda")
    mask = torch.empty(input.numel() // 8, dtype=torch.uint8, device="cuda")
    seed = torch.empty(2, dtype=torch.int64, device="cuda")
    del seed
    return [out, mask]


@told("transformer_engine::dropout_bwd")
def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Maybe = None  # noqa: ARG001
) -> Tensor:  # fmt: skip
    """The gradient of its input."""
    return torch.empty_like(grad_output) if grad_input is None else grad_input


@told("transformer_engine::swap_first_dims")
def swap_first_dims(tensor: Tensor, *, out: Maybe = None) -> Tensor:
    """A copy with the first two dims exchanged."""
    given = tensor.contiguous()
    if out is not None:
        return out
    return torch.empty((given.size(1), given.size(0), *given.shape[2:]), dtype=given.dtype, device="cuda")
