"""Parameters of mixtures of experts: decoders whose MLP is a router with experts, in all of their layers or some.

Shapes are those of transformers 5.23, whose experts lie in one tensor for each matrix. All of an expert's elements
have a gradient, whether or not a token reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.bound.config_values import ConfigValues
from planner.bound.decoders import DecoderFamily
from planner.bound.elements import Elements, layer_norm, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFamily:
    """A decoder and its experts. `inside` is the key of an expert's inner size."""

    decoder: DecoderFamily
    inside: str = "intermediate_size"
    experts: str = "num_local_experts"
    expert_bias: bool = False
    """Of the router and of both matrices of an expert."""
    sinks: bool = False
    """One more parameter for each head of the attention."""
    sparse_step: bool = False
    """Some layers have an MLP: decoder_sparse_step and mlp_only_layers say which."""
    shared: str = ""
    """The key of the inner size of an expert for all tokens, which has a gate; empty: there is none."""
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.decoder.defaults

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""
        layers = values.whole("num_hidden_layers", least=0)
        sparse = self._sparse_layers(values, layers)
        each = self.decoder.attention(values) + self.decoder.layer_norms(values)
        each += values.whole("num_attention_heads") if self.sinks else 0
        found = layers * each + sparse * self._experts(values)
        if sparse < layers:
            found += (layers - sparse) * self.decoder.mlp(values)
        return self.decoder.outside_layers(values, found)

    def _experts(self, values: ConfigValues) -> int:
        hidden, experts, inside = values.whole("hidden_size"), values.whole(self.experts), values.whole(self.inside)
        expert = linear(hidden, 2 * inside, bias=self.expert_bias) + linear(inside, hidden, bias=self.expert_bias)
        found = linear(hidden, experts, bias=self.expert_bias) + experts * expert
        if self.shared:
            found += 3 * hidden * values.whole(self.shared) + hidden
        return found

    def _sparse_layers(self, values: ConfigValues, layers: int) -> int:
        """Every n-th layer, but those that are listed."""
        if not self.sparse_step:
            return layers
        step = values.whole("decoder_sparse_step")
        return layers // step - values.multiples("mlp_only_layers", step=step, below=layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMixtureFamily:
    """DeepSeek's: keys and values from a latent vector, the first layers with an MLP, experts for all tokens."""

    decoder: DecoderFamily
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.decoder.defaults

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""
        layers = values.whole("num_hidden_layers", least=0)
        dense = min(values.whole("first_k_dense_replace", least=0), layers)
        found = layers * (self._attention(values) + self.decoder.layer_norms(values))
        if dense:
            found += dense * self.decoder.mlp(values)
        if dense < layers:
            found += (layers - dense) * self._experts(values)
        return self.decoder.outside_layers(values, found)

    def _attention(self, values: ConfigValues) -> int:
        hidden, heads = values.whole("hidden_size"), values.whole("num_attention_heads")
        latent, rotary = values.whole("kv_lora_rank"), values.whole("qk_rope_head_dim")
        plain, value = values.whole("qk_nope_head_dim"), values.whole("v_head_dim")
        bias = values.flag("attention_bias")
        found = linear(hidden, latent + rotary, bias=bias) + layer_norm(latent, bias=False)
        found += linear(latent, heads * (plain + value)) + linear(heads * value, hidden, bias=bias)
        queries = heads * (plain + rotary)
        if values.is_null("q_lora_rank"):
            return found + linear(hidden, queries)
        rank = values.whole("q_lora_rank")
        return found + linear(hidden, rank, bias=bias) + layer_norm(rank, bias=False) + linear(rank, queries)

    def _experts(self, values: ConfigValues) -> int:
        hidden, experts = values.whole("hidden_size"), values.whole("n_routed_experts")
        inside = values.whole("moe_intermediate_size")
        shared = self.decoder.mlp_of(values, inside * values.whole("n_shared_experts"))
        return experts * (hidden + 3 * hidden * inside) + shared


def _sizes(
    vocab: int, hidden: int, ffn: int, layers: int, heads: int, pairs: int | None, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": pairs, "tie_word_embeddings": False,
        "attention_bias": False, **more,
    }  # fmt: skip


_SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": None}

MIXTURES: dict[str, MixtureFamily | LatentMixtureFamily] = {
    "mixtral": MixtureFamily(
        decoder=DecoderFamily(defaults=_sizes(32000, 4096, 14336, 32, 32, 8, num_local_experts=8)),
        aliases={"num_experts": "num_local_experts"},
    ),
    "qwen2_moe": MixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(151936, 2048, 5632, 24, 16, 16, qkv_bias=True, moe_intermediate_size=1408, num_experts=60,
                            shared_expert_intermediate_size=5632, **_SPARSE),
            query_bias="qkv_bias",
        ),
        inside="moe_intermediate_size", experts="num_experts", shared="shared_expert_intermediate_size",
        sparse_step=True,
    ),
    "qwen3_moe": MixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(151936, 2048, 6144, 24, 32, 4, moe_intermediate_size=768, num_local_experts=128, **_SPARSE),
            query_bias="attention_bias", output_bias="attention_bias", head_norm=True,
        ),
        inside="moe_intermediate_size", sparse_step=True, aliases={"num_experts": "num_local_experts"},
    ),
    "olmoe": MixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(50304, 2048, 2048, 16, 16, None, num_experts=64),
            query_bias="attention_bias", output_bias="attention_bias", whole_norm=True,
            whole_norm_of_hidden=True,
        ),
        experts="num_experts", aliases={"num_local_experts": "num_experts"},
    ),
    "gpt_oss": MixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(201088, 2880, 2880, 36, 64, 8, head_dim=64, num_local_experts=128, attention_bias=True),
            query_bias="attention_bias", output_bias="attention_bias",
        ),
        expert_bias=True, sinks=True, aliases={"num_experts": "num_local_experts"},
    ),
    "deepseek_v2": LatentMixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(102400, 4096, 11008, 32, 32, None, mlp_bias=False, first_k_dense_replace=0,
                            kv_lora_rank=512, q_lora_rank=1536, n_routed_experts=64, n_shared_experts=2,
                            qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=1407),
            mlp_bias="mlp_bias",
        ),
        aliases={"num_experts": "n_routed_experts"},
    ),
    "deepseek_v3": LatentMixtureFamily(
        decoder=DecoderFamily(
            defaults=_sizes(129280, 7168, 18432, 61, 128, 128, first_k_dense_replace=3, kv_lora_rank=512,
                            q_lora_rank=1536, n_routed_experts=256, n_shared_experts=1, qk_nope_head_dim=128,
                            qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=2048),
        ),
        aliases={"num_local_experts": "n_routed_experts"},
    ),
}  # fmt: skip
"""By the model_type of their config."""
