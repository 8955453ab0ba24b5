"""TransformerEngine: what its Python code finds in `transformer_engine_torch`, its kernels with what they allocate.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/pybind.cpp, common/util/pybind_helper.h. Names that are not
modelled are there too, as the package takes them while it is imported, and are refused when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from planner.paper.outside.operators import (
    Described,
    floats,
    kernel,
    refuse,
    rounded,
    scratch,
    unknown_workspace,
)

Tensor = torch.Tensor
Maybe = Tensor | None
Function = TypeVar("Function", bound=Callable[..., Any])

EXTENSION: dict[str, Any] = {}
"""By name what stands in the extension."""


def _kernel(function: Function) -> Function:
    """The function stands in the extension, and what it allocates is recorded as that of this name."""
    return _described_kernel(None)(function)


def _described_kernel(describe: Described | None) -> Callable[[Function], Function]:
    """As `_kernel`; the work of a call is that of the tensors and numbers that `describe` says of its arguments."""

    def register(function: Function) -> Function:
        name = function.__name__
        recorded = kernel(f"transformer_engine::{_RECORDED_AS.get(name, name)}", describe)
        EXTENSION[name] = recorded(function)
        return function

    return register


_RECORDED_AS = {"generic_gemm": "gemm", "te_general_grouped_gemm": "grouped_gemm"}


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="cuda")


# Source, TransformerEngine 2.11: transformer_engine/common/util/pybind_helper.h, common/include/transformer_engine/
# {transformer_engine,fused_attn,comm_gemm_overlap}.h, pytorch/csrc/common.h.
DType = IntEnum(
    "DType",
    {"kByte": 0, "kInt32": 2, "kFloat32": 4, "kFloat16": 5, "kBFloat16": 6, "kFloat8E4M3": 7, "kFloat8E5M2": 8,
     "kFloat4E2M1": 10},
)  # fmt: skip
"""Those that Python knows; since 2.17 the package compares them with its own."""
_DTYPES = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
}
"""Those of torch that are not quantized."""
_BIASES = ("NO_BIAS", "PRE_SCALE_BIAS", "POST_SCALE_BIAS", "ALIBI")
_MASKS = (
    "NO_MASK", "PADDING_MASK", "CAUSAL_MASK", "PADDING_CAUSAL_MASK", "CAUSAL_BOTTOM_RIGHT_MASK",
    "PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)  # fmt: skip
_SOFTMAXES = ("VANILLA_SOFTMAX", "OFF_BY_ONE_SOFTMAX", "LEARNABLE_SOFTMAX")
_LAYOUTS = (
    "SB3HD", "SBH3D", "SBHD_SB2HD", "SBHD_SBH2D", "SBHD_SBHD_SBHD", "BS3HD", "BSH3D", "BSHD_BS2HD", "BSHD_BSH2D",
    "BSHD_BSHD_BSHD", "T3HD", "TH3D", "THD_T2HD", "THD_TH2D", "THD_THD_THD", "SBHD_BSHD_BSHD", "BSHD_SBHD_SBHD",
    "THD_BSHD_BSHD", "THD_SBHD_SBHD", "Paged_KV_BSHD_BSHD_BSHD", "Paged_KV_BSHD_SBHD_SBHD", "Paged_KV_SBHD_BSHD_BSHD",
    "Paged_KV_SBHD_SBHD_SBHD", "Paged_KV_THD_BSHD_BSHD", "Paged_KV_THD_SBHD_SBHD", "BHSD_BHSD_BHSD",
)  # fmt: skip
_ENUMERATIONS = {
    "NVTE_Bias_Type": [f"NVTE_{name}" for name in _BIASES],
    "NVTE_Mask_Type": [f"NVTE_{name}" for name in _MASKS],
    "NVTE_Softmax_Type": [f"NVTE_{name}" for name in _SOFTMAXES],
    "NVTE_QKV_Format": [
        "NVTE_SBHD", "NVTE_BSHD", "NVTE_THD", "NVTE_BSHD_2SBHD", "NVTE_SBHD_2BSHD", "NVTE_THD_2BSHD", "NVTE_THD_2SBHD",
        "NVTE_BHSD", "NVTE_QKV_Format_NOT_SET",
    ],
    "NVTE_QKV_Layout": [f"NVTE_{name}" for name in _LAYOUTS],
    "Float8BlockScaleTensorFormat": ["GEMM_READY", "COMPACT", "INVALID"],
    "NVTERoutingMapFormat": ["BYTEMAP", "BITMAP_U8"],
    "CommOverlapType": ["RS", "AG"],
    "CommOverlapAlgo": [
        "BULK_OVERLAP_AG", "BULK_OVERLAP_RS", "SPLIT_PIPELINED_AG_P2P", "SPLIT_PIPELINED_RS", "SPLIT_PIPELINED_RS_P2P",
        "ATOMIC_GEMM_RS", "ATOMIC_GEMM_AG_P2P", "ATOMIC_GEMM_RS_P2P", "EXTERNAL_BULK_OVERLAP_AG",
    ],
    "FP8FwdTensors": [f"GEMM{number}_{part}" for number in (1, 2, 3) for part in ("INPUT", "WEIGHT", "OUTPUT")],
    "FP8BwdTensors": [f"GRAD_{part}{number}" for number in (1, 2, 3) for part in ("OUTPUT", "INPUT")],
}  # fmt: skip
NVTE_Fused_Attn_Backend = IntEnum(
    "NVTE_Fused_Attn_Backend",
    {"NVTE_No_Backend": -1, "NVTE_F16_max512_seqlen": 0, "NVTE_F16_arbitrary_seqlen": 1, "NVTE_FP8": 2},
)
EXTENSION |= {name: IntEnum(name, members, start=0) for name, members in _ENUMERATIONS.items()}
EXTENSION |= {"DType": DType, "NVTE_Fused_Attn_Backend": NVTE_Fused_Attn_Backend}

_ALLOWED = "training in bfloat16, float16 or float32 of dense layers, with --bf16 or --fp16 and no --fp8-format"
_NOT_MODELLED = (
    "quantize", "dequantize", "multi_tensor_quantize", "split_quantize", "fp8_transpose", "compute_amax",
    "fused_amax_and_scale_update_after_reduction", "fp8_block_scaling_compute_partial_amax",
    "fp8_block_scaling_partial_cast", "mxfp8_scaling_compute_partial_amax", "mxfp8_scaling_partial_cast",
    "fused_multi_row_padding", "fused_multi_row_unpadding", "multi_tensor_adam_fp8",
    "multi_tensor_compute_scale_and_scale_inv", "multi_tensor_compute_scale_inv_e8m0",
    "dbias_dgelu", "dbias_dsilu", "dbias_drelu", "dbias_dqgelu", "dbias_dsrelu",
    "moe_permute_fwd", "moe_permute_bwd", "moe_unpermute_fwd", "moe_unpermute_bwd",
    "fused_topk_with_score_function_fwd", "fused_topk_with_score_function_bwd", "fused_score_for_moe_aux_loss_fwd",
    "fused_score_for_moe_aux_loss_bwd", "fused_moe_aux_loss_fwd", "fused_moe_aux_loss_bwd",
    "fa_prepare_fwd", "fa_prepare_bwd", "copy_to_kv_cache", "convert_thd_to_bshd", "convert_bshd_to_thd",
    "thd_read_half_tensor", "thd_second_half_lse_correction", "thd_read_second_half_lse", "thd_out_correction",
    "thd_grad_correction", "thd_get_partitioned_indices", "get_cublasLt_version", "bulk_overlap_ag_with_external_gemm",
    "device_supports_multicast", "get_stream_priority_range", "ubuf_built_with_mpi", "init_nvshmem_backend",
    "create_nvshmem_tensor", "nvshmem_send_on_current_stream", "nvshmem_wait_on_current_stream", "nvshmem_finalize",
)  # fmt: skip
_CLASSES = ("CommOverlap", "CommOverlapBase", "CommOverlapCore", "CommOverlapHelper", "CommOverlapP2P",
            "CommOverlapP2PBase", "FP8TensorMeta")  # fmt: skip


def _refused_function(name: str) -> Callable[..., Any]:
    def call(*_arguments: Any, **_named: Any) -> Any:
        refuse(f"{name} of TransformerEngine", "its allocations are not modelled", _ALLOWED)

    call.__name__ = name
    return call


def _refused_class(name: str) -> type:
    """For annotations and `isinstance`; nobody makes an object of it."""

    def make(_self: Any, *_arguments: Any, **_named: Any) -> None:
        refuse(f"{name} of TransformerEngine", "communication that overlaps with products is not modelled", _ALLOWED)

    return type(name, (), {"__init__": make})


EXTENSION |= {name: _refused_function(name) for name in _NOT_MODELLED}
EXTENSION |= {name: _refused_class(name) for name in _CLASSES}


def _refuse_quantized(*values: Any) -> None:
    """Raises TraceError if one of the values is a quantizer or a quantized tensor: neither is None or torch's own."""
    for value in values:
        if value is not None and type(value) not in (torch.Tensor, torch.nn.Parameter):
            refuse("TransformerEngine", f"{type(value).__name__} (fp8, nvfp4, mxfp8) is not modelled", _ALLOWED)


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/multi_tensor/{l2norm,scale,adam,sgd}.cpp.
Lists = Sequence[Sequence[Tensor]]
_PARTS_OF_NORM = 320


@_kernel
def multi_tensor_l2norm(
    chunk_size: int, _noop: Tensor, lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """The norm of all, and with `per_tensor` those of each."""
    tensors = lists[0]
    count = len(tensors) if per_tensor else 0
    accumulator = torch.zeros(_PARTS_OF_NORM, dtype=torch.float32, device=tensors[0].device)
    whole = floats(tensors[0], 1)
    chunks = max((-(-tensor.numel() // chunk_size) for tensor in tensors), default=0)
    parts, norms = floats(tensors[0], count * chunks), floats(tensors[0], count)
    del accumulator, parts
    return whole, norms


def _multi_tensor_unscale_l2norm(
    chunk_size: int, noop: Tensor, lists: Lists, _scale: Tensor, per_tensor: bool | None = None
) -> Any:
    return EXTENSION["multi_tensor_l2norm"](chunk_size, noop, lists, per_tensor)


def _write_last_list(_chunk_size: int, _noop: Tensor, lists: Lists, *_settings: Any) -> None:
    """Writes to the last list of tensors, and to others of its lists."""
    for tensor in lists[-1]:
        torch.ops.paper.forget_value(tensor)


EXTENSION["multi_tensor_unscale_l2norm"] = _multi_tensor_unscale_l2norm
EXTENSION |= {
    f"multi_tensor_{name}": _write_last_list
    for name in (
        "scale", "scale_tensor", "adam", "adam_param_remainder", "adam_capturable", "adam_capturable_master", "sgd",
    )
}  # fmt: skip

# Source, TransformerEngine 2.11: pytorch/csrc/extensions/attention.cpp, common/fused_attn/{fused_attn.cpp,
# fused_attn_f16_arbitrary_seqlen.cu}. Of the workspace what cuDNN's front end asks for is counted: row sums and the
# query's gradient in float32 (include/cudnn_frontend/node/scaled_dot_product_flash_attention.h, since 9.0). Arguments
# come by position in an order that differs between versions.
_FIRST, _LAST = (2, 7), (2, 18)
_SINCE = {
    "softmax": (2, 8), "offset": (2, 8), "bottom_right": (2, 12),
    **dict.fromkeys(("o_format", "do_format", "dqkv_layout", "qkv_scale_format", "do_scale_format"), (2, 15)),
}  # fmt: skip
_UNTIL = {"grad_dtype": (2, 15)}
"""Arguments that not all versions have: since when, or until when."""
_DETERMINISTIC_CUDNN = 91801
_QUESTION = (
    "is_training", "q_dtype", "kv_dtype", "layout", "bias", "mask", "softmax", "dropout", "heads", "groups", "rows",
    "columns", "head_dim", "value_dim", "left", "right", "return_max_logit", "cuda_graph", "deterministic",
)  # fmt: skip
_FORWARD = (
    "rows", "columns", "is_training", "scale", "dropout", "set_zero", "layout", "o_format", "qkv_scale_format",
    "bias_type", "mask", "softmax", "window", "bottom_right", "lengths_q", "lengths_kv", "q", "k", "v", "dtype",
    "padded_q", "padded_kv", "pages_k", "pages_v", "s_quantizer", "o_quantizer", "bias", "offset", "generator",
    "numbers", "return_max_logit", "cuda_graph",
)  # fmt: skip
_BACKWARD = (
    "rows", "columns", "scale", "dropout", "set_zero", "layout", "o_format", "do_format", "dqkv_layout",
    "qkv_scale_format", "do_scale_format", "bias_type", "mask", "softmax", "window", "bottom_right", "deterministic",
    "lengths_q", "lengths_kv", "q", "k", "v", "out", "grad", "dtype", "grad_dtype", "kept",
    "padded_q", "padded_kv", "s_quantizer", "dp_quantizer", "dqkv_quantizer", "cuda_graph",
)  # fmt: skip


@cache
def _release() -> tuple[int, int]:
    """The installed package's. Raises TraceError for one whose arguments are not known."""
    whole = version("transformer_engine")
    major, minor = (int(part) for part in whole.split(".")[:2])
    if not _FIRST <= (major, minor) <= _LAST:
        refuse(
            f"attention of TransformerEngine {whole}",
            "its extension is not known",
            f"transformer-engine {'.'.join(map(str, _FIRST))} to {'.'.join(map(str, _LAST))}",
        )
    return major, minor


def _named(names: tuple[str, ...], values: tuple[Any, ...]) -> SimpleNamespace:
    """The arguments of a call by their names, in the order of the installed version; 0 where that has none of them."""
    release = _release()
    own = [name for name in names if _SINCE.get(name, release) <= release < _UNTIL.get(name, (3, 0))]
    return SimpleNamespace(**dict.fromkeys(names, 0) | dict(zip(own, values, strict=False)))


def _get_fused_attn_backend(*values: Any) -> IntEnum:
    """The backend for sequences of any length where it has a kernel that is modelled, otherwise none, so that the
    package takes another of its ways or says that it has none."""
    call = _named(_QUESTION, values)
    dims, major = (call.head_dim, call.value_dim), torch.cuda.get_device_capability()[0]
    # With cuDNN 9.11 and later, in training.
    has_width = (
        max(dims) <= 128
        or (major == 9 and call.head_dim == call.value_dim <= 256)
        or (major >= 10 and dims == (192, 128))
    )
    modelled = (
        call.q_dtype in (DType.kFloat16, DType.kBFloat16)
        and major >= 8
        and all(dim % 8 == 0 for dim in dims)
        and has_width
        and not _has_bias_or_sinks(call.bias, call.softmax)
        and not (major >= 10 and call.is_training and _lacks_determinism(call))
    )
    backends = NVTE_Fused_Attn_Backend
    return backends.NVTE_F16_arbitrary_seqlen if modelled else backends.NVTE_No_Backend


def _lacks_determinism(call: SimpleNamespace) -> bool:
    """Whether cuDNN is asked for a backward on Blackwell that gives the same each time, and has none: before 9.18.1,
    and with dropout. Source, TransformerEngine 2.14: common/fused_attn/fused_attn.cpp."""
    version = EXTENSION["get_cudnn_version"]()
    return bool(call.deterministic) and (call.dropout > 0 or version < _DETERMINISTIC_CUDNN)


def _has_bias_or_sinks(bias: int, softmax: int) -> bool:
    return bool(bias != _BIASES.index("NO_BIAS") or softmax != _SOFTMAXES.index("VANILLA_SOFTMAX"))


EXTENSION["get_fused_attn_backend"] = _get_fused_attn_backend
EXTENSION["get_cudnn_version"] = lambda: torch.backends.cudnn.version()


def _check(call: SimpleNamespace) -> None:
    _refuse_quantized(call.q, call.k, call.v, call.s_quantizer)
    layout = f"NVTE_{_LAYOUTS[call.layout]}"
    if any(part in layout for part in ("THD", "T3HD", "TH3D", "Paged")):
        refuse(
            "fused attention of TransformerEngine", f"packed or paged sequences ({layout}) are not modelled", _ALLOWED
        )
    if _has_bias_or_sinks(call.bias_type, call.softmax):
        refuse("fused attention of TransformerEngine", "a bias and sinks are not modelled", _ALLOWED)


def _in_heads(call: SimpleNamespace) -> list[Tensor]:
    """Query, key and value as [batch, heads, rows, head dim]; views."""
    order = (1, 2, 0, 3) if _LAYOUTS[call.layout].startswith("SB") else (0, 2, 1, 3)
    return [tensor.permute(order) for tensor in (call.q, call.k, call.v)]


def _describe_attention(names: tuple[str, ...]) -> Described:
    def describe(*values: Any) -> tuple[Sequence[Tensor], Sequence[int]]:
        """Query, key and value, and whether a row sees only what is before it."""
        call = _named(names, values)
        return _in_heads(call), [int("CAUSAL" in _MASKS[call.mask])]

    return describe


@_described_kernel(_describe_attention(_FORWARD))
def fused_attn_fwd(*values: Any) -> list[Tensor]:
    """Result, statistics [batch, heads, rows, 1], seed."""
    call = _named(_FORWARD, values)
    _check(call)
    if call.return_max_logit:
        refuse("fused attention of TransformerEngine", "return_max_logit is not modelled", _ALLOWED)
    query = _in_heads(call)[0]
    out = _empty((*call.q.shape[:-1], call.v.size(-1)), call.q.dtype)
    seed = _empty((2,), torch.int64)
    unknown_workspace("cudnn", "cuDNN attention, forward", 1)
    statistics = floats(query, query.size(0), query.size(1), call.rows, 1)
    return [out, statistics, seed]


@_described_kernel(_describe_attention(_BACKWARD))
def fused_attn_bwd(*values: Any) -> list[Tensor | None]:
    """Gradients of query, key and value, laid out together where these are; of a bias, of sinks: none."""
    call = _named(_BACKWARD, values)
    _check(call)
    has_own = _release() >= _SINCE["dqkv_layout"]
    layout, dtype = _LAYOUTS[call.dqkv_layout if has_own else call.layout], call.q.dtype

    def together(like: Tensor, parts: int) -> list[Tensor]:
        """Of tensors that lie in one another (SB3HD, SBHD_SB2HD, ...) one tensor is made."""
        place = like.dim() - (2 if f"{parts}HD" in layout else 1)
        return list(_empty([*like.shape[:place], parts, *like.shape[place:]], dtype).unbind(place))

    if "3" in layout:
        grads = together(call.q, 3)
    elif "2" in layout:
        grads = [_empty(call.q.shape, dtype), *together(call.k, 2)]
    else:
        grads = [_empty(tensor.shape, dtype) for tensor in (call.q, call.k, call.v)]
    batch, heads, rows, head_dim = _in_heads(call)[0].shape
    of_front_end = batch * heads * rows * (head_dim + 1) * torch.float32.itemsize
    unknown_workspace("cudnn", "cuDNN attention, backward", of_front_end)
    return [*grads, None, None]


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/normalization.cpp, common/normalization/{common.h,
# layernorm/ln_bwd_semi_cuda_kernel.cu, rmsnorm/rmsnorm_bwd_semi_cuda_kernel.cu}. How many blocks of threads a
# multiprocessor holds is asked of the driver: the workspace is named as not known.
_WHOLE_ROWS = 8192
"""RMS norms of a tuned kernel have up to so many in a block."""
_ALIGNED = 16
_BLOCKS, _COLUMNS = 2, 4096
"""Blocks that a multiprocessor holds, for which registers of 128 threads allow at least, and columns of a row that a
block has in kernels for any width."""


def _bytes_of_sums(columns: int, *, blocks_a_row: int = 0, spared: int = 0) -> int:
    """What the backward of a persistent norm takes for each of its weights: sums in float32 over the rows of each block
    of threads. `spared` multiprocessors are left to others; without `blocks_a_row` kernels for any width are taken."""
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count - spared
    down = multiprocessors * _BLOCKS // (blocks_a_row or -(-columns // _COLUMNS))
    return down * columns * torch.float32.itemsize


def _norm(given: Tensor, weight: Tensor, out: Maybe, quantizer: Any, dtype: int, *, has_mean: bool) -> list[Maybe]:
    _refuse_quantized(given, weight, out, quantizer)
    rows = given.numel() // given.size(-1)
    mean = floats(given, rows) if has_mean else None
    spread = floats(given, rows)
    if out is None:
        out = _empty(given.shape, _DTYPES[DType(dtype)])
    scratch(1)  # of wide rows some KiB, as blocks exchange figures
    return [out, mean, spread]


@_kernel
def layernorm_fwd(
    input: Tensor, weight: Tensor, bias: Maybe, eps: float, ln_out: Maybe, quantizer: Any,  # noqa: ARG001
    otype: int, sm_margin: int, zero_centered_gamma: bool,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, means, one over the deviations."""
    return _norm(input, weight, ln_out, quantizer, otype, has_mean=True)


@_kernel
def rmsnorm_fwd(
    input: Tensor, weight: Tensor, eps: float, ln_out: Maybe, quantizer: Any, otype: int,  # noqa: ARG001
    sm_margin: int, zero_centered_gamma: bool,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, None, one over the root mean squares."""
    return _norm(input, weight, ln_out, quantizer, otype, has_mean=False)


def _norm_backward(grad: Tensor, given: Tensor, *others: Any, has_mean: bool) -> list[Tensor]:
    """Gradients of input and weight, with a mean also of the bias. Statistics, or another gradient that is added, stand
    before the weight; behind it how many multiprocessors are left to others."""
    *before, weight, sm_margin, _zero_centered = others
    *kept, given, weight = [tensor.contiguous() for tensor in (*before, grad, given, weight)]
    grads = [torch.empty_like(given), torch.empty_like(weight)]
    if has_mean:
        grads.append(torch.empty_like(weight))
    columns = given.size(-1)
    blocks_a_row = 1 if not has_mean and columns <= _WHOLE_ROWS else 0
    partial_bytes = rounded(_bytes_of_sums(columns, blocks_a_row=blocks_a_row, spared=sm_margin), _ALIGNED)
    kernel = f"TransformerEngine's {'layer' if has_mean else 'RMS'} norm, backward: beyond two blocks a multiprocessor"
    unknown_workspace("transformer_engine", kernel, partial_bytes * (len(grads) - 1))
    del kept
    return grads


for _name, _has_mean in (("layernorm_bwd", True), ("rmsnorm_bwd", False), ("rmsnorm_bwd_add", False)):
    EXTENSION[_name] = kernel(f"transformer_engine::{_name}")(partial(_norm_backward, has_mean=_has_mean))


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


@_kernel
def generic_gemm(
    A: Tensor, transA: bool, B: Tensor, transB: bool, D: Maybe, quantizer: Any,  # noqa: N803
    output_dtype: int | None, bias: Maybe, bias_type: int, gelu: bool, gelu_in: Maybe, grad: bool,  # noqa: ARG001
    workspace: Tensor, workspace_size: int, accumulate: bool, use_split_accumulator: bool,  # noqa: ARG001
    comm_overlap: Any = None, comm_type: Any = None, extra_output: Maybe = None,  # noqa: ARG001
    bulk_overlap: bool = False, alpha: float = 1.0, beta: float | None = None,  # noqa: ARG001
) -> list[Maybe]:  # fmt: skip
    """Result, gradient of the bias, input of GELU, extra output. Raises TraceError for fp8 and for overlapped
    communication, RuntimeError for shapes that do not fit."""
    _refuse_quantized(A, B, D, quantizer)
    if comm_overlap is not None:
        refuse("generic_gemm of TransformerEngine", "communication that overlaps is not modelled", _ALLOWED)
    shape = _result_shape(A, transA, B, transB)
    if D is None:
        out = _empty(shape, A.dtype if output_dtype is None else _DTYPES[DType(output_dtype)])
    else:
        torch.ops.paper.forget_value(D)
        out = D
    of_bias = _empty((B.size(-1),), out.dtype) if bias is not None and grad else None
    before_gelu = _empty(shape, out.dtype) if gelu and not grad else None
    return [out, of_bias, before_gelu, extra_output]


@_kernel
def te_general_grouped_gemm(
    A: Sequence[Tensor], transA: bool, B: Sequence[Tensor], transB: bool,  # noqa: N803
    D: Sequence[Tensor] | None, dtype: int, _splits: Sequence[int], bias: list[Tensor],  # noqa: N803
    *_rest: Any,
) -> list[Tensor]:  # fmt: skip
    """The biases, or their gradients, as they were given. The results are the caller's; without any they are made, and
    gone when it ends."""
    _refuse_quantized(*A, *B, *(D or ()))
    kind = _DTYPES[DType(dtype)]
    made = [_empty(_result_shape(a, transA, b, transB), kind) for a, b in zip(A, B, strict=True)] if D is None else D
    for out in made:
        torch.ops.paper.forget_value(out)
    return bias


EXTENSION["get_num_cublas_streams"] = lambda: 4  # common/util/multi_stream.cpp


# Source, TransformerEngine 2.11: pytorch/csrc/extensions/{activation,bias,apply_rope,softmax,dropout,transpose}.cpp.
def _offer_activation(name: str, backward: str, parts: int) -> None:
    """An activation, whose last dim is that of its input divided by `parts`, and the gradient of its input."""

    @kernel(f"transformer_engine::{name}")
    def activate(input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        _refuse_quantized(input, quantizer)
        given = input.contiguous()
        return _empty((*given.shape[:-1], given.size(-1) // parts), given.dtype)

    @kernel(f"transformer_engine::{backward}")
    def differentiate(grad: Tensor, fwd_input: Tensor, quantizer: Any, **_settings: float) -> Tensor:
        _refuse_quantized(grad, fwd_input, quantizer)
        grad, given = grad.contiguous(), fwd_input.contiguous()
        return _empty(given.shape, given.dtype)

    EXTENSION.update({name: activate, backward: differentiate})


for _name in ("gelu", "qgelu", "relu", "srelu", "silu"):
    _offer_activation(_name, f"d{_name}", 1)
for _name in ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu"):
    _offer_activation(_name, f"d{_name}", 2)
_offer_activation("clamped_swiglu", "clamped_dswiglu", 2)


@_kernel
def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Tensor]:
    """The gradient of a bias, and its input as it is where nothing is quantized."""
    _refuse_quantized(input, quantizer)
    return [input.sum(tuple(range(input.dim() - 1))), input]


def _rotate(
    given: Tensor, frequencies: Tensor, places: Maybe, _form: Any, _interleaved: bool, lengths: Maybe, *_ranks: int
) -> Tensor:
    """The rotated tensor, or the gradient of its input, dense."""
    if frequencies.dim() != 4 or frequencies.dtype != torch.float32:
        raise RuntimeError("Dtype of the freqs tensor must be float, of four dims")
    if places is not None or lengths is not None:
        refuse("fused_rope of TransformerEngine", "places of its own and packed sequences are not modelled", _ALLOWED)
    return _empty(given.shape, given.dtype)


EXTENSION |= {
    name: kernel(f"transformer_engine::{name}")(_rotate) for name in ("fused_rope_forward", "fused_rope_backward")
}


@_kernel
def fused_qkv_rope_forward(
    given: Tensor, _of_query: Tensor, _of_key: Tensor, _places: Maybe, splits: Sequence[int], *_settings: Any
) -> tuple[Tensor, ...]:
    """Query and key rotated, and value, of one tensor [.., .., groups, dims of the three]."""
    (queries, key, value), heads = splits, given.size(2)
    parts = (heads * queries // key, key), (heads, key), (heads, value)
    return tuple(_empty((*given.shape[:2], *part), given.dtype) for part in parts)


@_kernel
def fused_qkv_rope_backward(
    of_query: Tensor, of_key: Tensor, of_value: Tensor, _frequencies: Tensor, _others: Tensor, splits: Sequence[int],
    *_settings: Any,
) -> Tensor:  # fmt: skip
    """The gradient of the one tensor."""
    dims = sum(splits)
    heads = (of_query.size(2) + of_key.size(2) + of_value.size(2)) * of_query.size(3) // dims
    return _empty((*of_query.shape[:2], heads, dims), of_query.dtype)


@kernel("transformer_engine::softmax_fwd")
def _softmax(given: Tensor, *_rest: Any) -> Tensor:
    """Probabilities of the shape of the scores."""
    return _empty(given.shape, given.dtype)


@kernel("transformer_engine::softmax_bwd")
def _softmax_backward(grad: Tensor, kept: Tensor, *_rest: Any) -> Tensor:
    """In place of the gradient, which is made dense before."""
    grad, kept = grad.contiguous(), kept.contiguous()
    return grad


for _name in ("scaled", "scaled_masked", "scaled_upper_triang_masked", "scaled_aligned_causal_masked"):
    EXTENSION |= {f"{_name}_softmax_forward": _softmax, f"{_name}_softmax_backward": _softmax_backward}


@_kernel
def dropout_fwd(input: Tensor, dropout_probability: float, out: Maybe = None) -> list[Tensor]:  # noqa: ARG001
    """Result, and a mask of one bit an element."""
    if out is None:
        out = _empty(input.shape, input.dtype)
    mask = _empty((input.numel() // 8,), torch.uint8)
    _empty((2,), torch.int64)  # the seed
    return [out, mask]


@_kernel
def dropout_bwd(
    grad_output: Tensor, mask: Tensor, dropout_probability: float, grad_input: Maybe = None  # noqa: ARG001
) -> Tensor:  # fmt: skip
    return torch.empty_like(grad_output) if grad_input is None else grad_input


@_kernel
def swap_first_dims(tensor: Tensor, *, out: Maybe = None) -> Tensor:
    """A copy with the first two dims exchanged."""
    given = tensor.contiguous()
    return _empty((given.size(1), given.size(0), *given.shape[2:]), given.dtype) if out is None else out
