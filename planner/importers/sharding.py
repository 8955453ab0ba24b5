"""Names the parts that accelerate's FSDP2 gathers together.

As `fsdp2_prepare_model` does (accelerate 1.15.0, utils/fsdp_utils.py): each layer, the embedding alone, the last norm
with the head, the rest with the root; with tied weights the embedding goes with norm and head. Names and defaults are
those of transformers 5.23.0; a test builds each model and looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parts:
    """Names in a causal language model of one `model_type`."""

    layer: str
    """The class of its layers, which is what TRANSFORMER_BASED_WRAP wraps by default."""
    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    tied: bool = False
    """Where its config does not say tie_word_embeddings."""


PARTS: Mapping[str, Parts] = {
    "llama": Parts("LlamaDecoderLayer"),
    "mistral": Parts("MistralDecoderLayer"),
    "mixtral": Parts("MixtralDecoderLayer"),
    "qwen2": Parts("Qwen2DecoderLayer"),
    "qwen3": Parts("Qwen3DecoderLayer"),
    "qwen3_moe": Parts("Qwen3MoeDecoderLayer"),
    "gemma": Parts("GemmaDecoderLayer", tied=True),
    "gemma2": Parts("Gemma2DecoderLayer", tied=True),
    "phi3": Parts("Phi3DecoderLayer"),
    "olmo2": Parts("Olmo2DecoderLayer"),
    "gpt2": Parts("GPT2Block", "transformer.wte", "transformer.ln_f", tied=True),
    "gpt_neox": Parts("GPTNeoXLayer", "gpt_neox.embed_in", "gpt_neox.final_layer_norm"),
}

_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the classes end whose parts these are."""


def groups_of(config: Mapping[str, Any]) -> list[str] | None:
    """The groups beside the layers, for `parallel.dp_shard.groups`; None for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    classes = config.get("architectures") or ["ForCausalLM"]
    if parts is None or not str(classes[0]).endswith(_CAUSAL):
        return None
    if config.get("tie_word_embeddings", parts.tied):
        return [f"{parts.norm} {parts.embedding} {parts.head}"]
    return [parts.embedding, f"{parts.norm} {parts.head}"]


def layer_of(config: Mapping[str, Any]) -> str:
    """The class that is wrapped by default; empty for a model that is not in the table."""
    parts = PARTS.get(str(config.get("model_type")))
    return parts.layer if parts else ""
