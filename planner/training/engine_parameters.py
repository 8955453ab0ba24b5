"""The tensors that an inference engine holds of a model's parameters on one of its ranks, by their sizes.

Counted from the model's real parameters, built without memory; how they are joined and divided follows vLLM's layers
(0.11, vllm/model_executor/layers): queries, keys and values are one tensor, gate and up another; columns and rows of
linear layers, and the vocabulary padded to a multiple of 64 (vocab_parallel_embedding.py), are divided over the ranks;
keys and values of fewer heads than ranks are there several times (linear.py, QKVParallelLinear); norms, routers, biases
of row-parallel layers and the projections into a latent space are whole on every rank. A model with rotary positions
has one table of sines and cosines (rotary_embedding.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from planner.job import schema
from planner.training.dtypes import floating
from planner.training.models.build import build

_VOCABULARY_PADDING = 64
_WHOLE = re.compile(
    r"(^|\.)(router|gate\.weight|shared_expert_gate|q_a_proj|kv_a_proj_with_mqa|wpe|embed_positions|position_embeddings)"
)
_ROW_PARALLEL_BIAS = re.compile(r"(^|\.)(o_proj|down_proj|c_proj|out_proj|fc2|dense_4h_to_h|dense|o|down)\.bias$")
_HEAD = re.compile(r"(^|\.)(lm_head|head|embed_out)\.weight$")
_KEYS_AND_VALUES = re.compile(r"(^|\.)(k_proj|v_proj|k|v)\.(weight|bias)$")
_JOINED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "q", "k", "v"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj", "up"), "gate_up"),
}


def engine_tensor_bytes(model: schema.Model, dtype: str, tensor_parallel: int, kv_heads: int) -> list[int]:
    """Bytes of each tensor of one rank in `dtype`, in the order in which they are made."""
    kept = floating(dtype, place="post_training.rollout.dtype").itemsize
    module = build(replace(model, parameter_dtype=dtype), torch.device("meta"))
    embeddings = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    sizes: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        vocabulary = id(parameter) in embeddings or _HEAD.search(name) is not None
        share = _share(name, parameter, tensor_parallel, kv_heads, vocabulary=vocabulary)
        key = _joined(name)
        sizes[key] = sizes.get(key, 0) + share * kept
    rotations = _rotations(module) * kept
    return [*sizes.values(), *([rotations] if rotations else [])]


def _joined(name: str) -> str:
    """The tensor of which a parameter is a part."""
    *parents, own, kind = name.split(".") if name.count(".") else ("", name)
    together = "gate_up" if own == "gate" and parents[-1:] == ["ffn"] else _JOINED.get(own)
    return ".".join((*parents, together, kind)) if together else name


def _share(name: str, parameter: nn.Parameter, ranks: int, kv_heads: int, *, vocabulary: bool) -> int:
    whole = parameter.numel()
    is_norm = parameter.ndim == 1 and not name.endswith("bias")
    if vocabulary and not _WHOLE.search(name):
        rows = -(-parameter.shape[0] // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
        return -(-rows // ranks) * (whole // parameter.shape[0])
    if is_norm or _ROW_PARALLEL_BIAS.search(name) or (_WHOLE.search(name) and ".ffn.gate." not in f".{name}"):
        return whole
    if _KEYS_AND_VALUES.search(name):
        return whole // min(ranks, max(kv_heads, 1))
    return -(-whole // ranks)


def _rotations(module: nn.Module) -> int:
    """Numbers in the table: a sine and a cosine of half of the rotated width, for every position."""
    widths = [buffer.numel() * 2 for name, buffer in module.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    config: Any = getattr(module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return widths[0] * int(getattr(text, "max_position_embeddings", 0)) if widths else 0
