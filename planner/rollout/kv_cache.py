"""What one token of the KV cache takes, from a model's config.

Attention keeps a key and a value of every KV head in every layer (vLLM 0.11, vllm/v1/kv_cache_interface.py,
FullAttentionSpec; sglang 0.5, model_runner_kv_cache_mixin.py); multi-head latent attention one compressed vector and
one rotated key instead, on every rank (MLAAttentionSpec). A layer with a sliding window takes what another does: the
engine divides the same memory, and only fewer tokens of it are alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import SpecError
from planner.job.schema import Decoder, Model

BYTES_OF_DTYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head")
_HIDDEN = ("hidden_size", "n_embd")
_OTHER_STATES = ("linear_attention", "mamba", "recurrent", "conv")


@dataclass(frozen=True, slots=True)
class KvShape:
    """What attention keeps of a token in one layer, in numbers: `kv_heads` of `head_dim`, twice; of a latent model one
    vector of `latent_dim` instead."""

    layers: int
    kv_heads: int
    head_dim: int
    latent_dim: int = 0

    def bytes_per_token(self, tensor_parallel: int, dtype: str) -> int:
        """Of all layers, on one rank. Fewer KV heads than ranks are there several times; a latent vector on each."""
        if self.latent_dim:
            return self.layers * self.latent_dim * BYTES_OF_DTYPE[dtype]
        heads = max(self.kv_heads // tensor_parallel, 1)
        return self.layers * 2 * heads * self.head_dim * BYTES_OF_DTYPE[dtype]


def kv_shape_of(model: Model) -> KvShape:
    """Of a transformers config or the built-in decoder. Raises SpecError where the config does not say it."""
    if model.decoder is not None:
        return _of_decoder(model.decoder)
    return _of_config(model.hf_config or {})


def _of_decoder(decoder: Decoder) -> KvShape:
    return KvShape(decoder.layers, decoder.kv_heads, decoder.head_dim or decoder.hidden // decoder.heads)


def _of_config(config: Mapping[str, Any]) -> KvShape:
    text = config.get("text_config", config)
    layers, heads = _number(text, _LAYERS), _number(text, _HEADS)
    others = sorted({str(each) for each in text.get("layer_types") or () if any(o in str(each) for o in _OTHER_STATES)})
    if others:
        raise _unknown(f"its layers are partly {', '.join(others)}, whose states planner does not count")
    if not text.get("is_encoder_decoder", False) and not text.get("kv_lora_rank"):
        head_dim = text.get("head_dim") or _number(text, _HIDDEN) // heads
        return KvShape(layers, int(text.get("num_key_value_heads") or heads), int(head_dim))
    if text.get("kv_lora_rank"):
        return KvShape(layers, 1, 0, latent_dim=int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim", 0)))
    raise _unknown("it has an encoder beside its decoder")


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        if type(value := config.get(name)) is int and value > 0:
            return value
    raise _unknown(f"its config does not say {names[0]}")


def _unknown(why: str) -> SpecError:
    return SpecError(
        f"the engine's KV cache of this model is not known: {why}",
        allowed="causal language models whose layers are attention",
        remedy="plan the trainer alone, without post_training",
        place="post_training.rollout",
    )
