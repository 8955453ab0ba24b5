"""Fused attention of cuDNN: the result, a float32 statistic a row and head, the seed, and cuDNN's workspace.

Source, TransformerEngine 2.11: pytorch/csrc/extensions/attention.cpp, common/fused_attn/{fused_attn.cpp,
fused_attn_f16_arbitrary_seqlen.cu}. The workspace is taken as that of torch's attention of cuDNN. Arguments come by
position in an order that differs between versions.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import torch

from planner.paper import library
from planner.paper.kernels.cudnn_attention import backward_workspace, forward_workspace
from planner.paper.kernels.table import scratch, target
from planner.paper.outside.operators import floats, refuse, told
from planner.paper.outside.transformer_engine.enumerations import (
    DType,
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)
from planner.paper.outside.transformer_engine.refusals import ALLOWED, refuse_quantized

Tensor = torch.Tensor

_FIRST, _LAST = (2, 10), (2, 13)
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
