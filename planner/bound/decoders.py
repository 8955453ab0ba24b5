"""Parameters of decoder models: Llama and those that differ from it by biases, norms and the gate.

Shapes are those of transformers 5.23 (models/*/modeling_*.py, the `__init__` of attention, MLP, layer and model), the
defaults those of its configs. Tests hold each family to its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.bound.config_values import ConfigValues
from planner.bound.elements import Elements, layer_norm, linear
from planner.job.schema import Decoder

Flag = bool | str
"""What a family always has or never has, or the key of the config that says so."""


def built_in(decoder: Decoder) -> int:
    """Elements of the built-in decoder (planner/training/models/decoder.py)."""
    size = decoder.head_dim or decoder.hidden // decoder.heads
    attention = 2 * decoder.hidden * size * (decoder.heads + decoder.kv_heads)
    layer = attention + 3 * decoder.hidden * decoder.ffn + 2 * decoder.hidden + (2 * size if decoder.qk_norm else 0)
    embeddings = decoder.vocab * decoder.hidden * (1 if decoder.tie_embeddings else 2)
    return embeddings + decoder.layers * layer + decoder.hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """What the decoders of one model type have beside q, k, v, o, the MLP and the two embeddings."""

    defaults: Mapping[str, Any]
    query_bias: Flag = False
    """Of queries, keys and values."""
    output_bias: Flag = False
    mlp_bias: Flag = False
    head_bias: bool = False
    gated: bool = True
    """Three matrices in the MLP, else two."""
    norms: int = 2
    """In each layer."""
    one_norm_if: str = ""
    """The key that leaves one norm to a layer, of whose two branches both begin there."""
    norm_bias: bool = False
    head_norm: Flag = False
    """Norms of queries and keys over a head."""
    head_norm_bias: bool = False
    whole_norm: Flag = False
    """Norms of queries and keys over all heads, or for each of them."""
    whole_norm_of_hidden: bool = False
    """They are as wide as hidden_size has it, whatever a head's size is said to be."""
    reads_head_dim: bool = True
    """A head's size may be said; else it is hidden_size over num_attention_heads."""

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""
        layer = self.attention(values) + self.mlp(values) + self.layer_norms(values)
        return self.outside_layers(values, values.whole("num_hidden_layers", least=0) * layer)

    def outside_layers(self, values: ConfigValues, layers: int) -> Elements:
        """With the embedding, the last norm and the head."""
        hidden, vocab = values.whole("hidden_size"), values.whole("vocab_size")
        head = 0 if values.flag("tie_word_embeddings") else vocab * hidden
        body = vocab * hidden + layers + layer_norm(hidden, bias=self.norm_bias)
        return Elements(body, head + vocab * self.head_bias)

    def attention(self, values: ConfigValues) -> int:
        """Of one layer."""
        hidden, heads, size = values.whole("hidden_size"), values.whole("num_attention_heads"), self.head_size(values)
        pairs = values.whole_or("num_key_value_heads", heads)
        bias = self.has(values, self.query_bias)
        found = linear(hidden, (heads + 2 * pairs) * size, bias=bias)
        found += linear(heads * size, hidden, bias=self.has(values, self.output_bias))
        if self.has(values, self.head_norm):
            found += 2 * layer_norm(size, bias=self.head_norm_bias)
        if self.has(values, self.whole_norm):
            found += (heads + pairs) * (hidden // heads if self.whole_norm_of_hidden else size)
        return found

    def mlp(self, values: ConfigValues, inside: str = "intermediate_size") -> int:
        """Of one layer, `inside` being the key of its inner size."""
        return self.mlp_of(values, values.whole(inside))

    def mlp_of(self, values: ConfigValues, inside: int) -> int:
        """Of this inner size."""
        hidden, bias = values.whole("hidden_size"), self.has(values, self.mlp_bias)
        into = (2 if self.gated else 1) * linear(hidden, inside, bias=bias)
        return into + linear(inside, hidden, bias=bias)

    def layer_norms(self, values: ConfigValues) -> int:
        """Of one layer."""
        fewer = bool(self.one_norm_if) and values.flag(self.one_norm_if)
        return (1 if fewer else self.norms) * layer_norm(values.whole("hidden_size"), bias=self.norm_bias)

    def head_size(self, values: ConfigValues) -> int:
        """Elements of one head."""
        usual = values.whole("hidden_size") // values.whole("num_attention_heads")
        return values.whole_or("head_dim", usual) if self.reads_head_dim else usual

    def has(self, values: ConfigValues, flag: Flag) -> bool:
        """What the family or the config says."""
        return flag if isinstance(flag, bool) else values.flag(flag)


def _sizes(
    vocab: int, hidden: int, ffn: int, layers: int, heads: int, pairs: int | None, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": pairs, "tie_word_embeddings": False, **more,
    }  # fmt: skip


_NO_BIAS = {"attention_bias": False, "mlp_bias": False}

DECODERS: dict[str, DecoderFamily] = {
    "llama": DecoderFamily(
        defaults=_sizes(32000, 4096, 11008, 32, 32, None, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "mistral": DecoderFamily(defaults=_sizes(32000, 4096, 14336, 32, 32, 8)),
    "qwen2": DecoderFamily(defaults=_sizes(151936, 4096, 22016, 32, 32, 32), query_bias=True),
    "qwen3": DecoderFamily(
        defaults=_sizes(151936, 4096, 22016, 32, 32, 32, head_dim=128, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", head_norm=True,
    ),
    "phi3": DecoderFamily(defaults=_sizes(32064, 3072, 8192, 32, 32, None)),
    "gemma": DecoderFamily(
        defaults=_sizes(256000, 3072, 24576, 28, 16, 16, head_dim=256, tie_word_embeddings=True, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias",
    ),
    "gemma2": DecoderFamily(
        defaults=_sizes(256000, 2304, 9216, 26, 8, 4, head_dim=256, tie_word_embeddings=True, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", norms=4,
    ),
    "gemma3_text": DecoderFamily(
        defaults=_sizes(262208, 2304, 9216, 26, 8, 4, head_dim=256, tie_word_embeddings=True, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", norms=4, head_norm=True,
    ),
    "nemotron": DecoderFamily(
        defaults=_sizes(256000, 6144, 24576, 32, 48, None, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias", gated=False, norm_bias=True,
    ),
    "phi": DecoderFamily(
        defaults=_sizes(51200, 2048, 8192, 24, 32, None, qk_layernorm=False),
        query_bias=True, output_bias=True, mlp_bias=True, head_bias=True, gated=False, norms=1, norm_bias=True,
        head_norm="qk_layernorm", head_norm_bias=True,
    ),
    "olmo2": DecoderFamily(
        defaults=_sizes(50304, 4096, 11008, 32, 32, None, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", whole_norm=True,
    ),
    "granite": DecoderFamily(
        defaults=_sizes(32000, 4096, 11008, 32, 32, None, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "cohere": DecoderFamily(
        defaults=_sizes(256000, 8192, 22528, 40, 64, None, tie_word_embeddings=True, use_qk_norm=False, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", norms=1, whole_norm="use_qk_norm",
    ),
    "starcoder2": DecoderFamily(
        defaults=_sizes(49152, 3072, 12288, 30, 24, 2, tie_word_embeddings=True, use_bias=True),
        query_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", gated=False, norm_bias=True,
    ),
    "stablelm": DecoderFamily(
        defaults=_sizes(50304, 2560, 6912, 32, 32, 32, use_qkv_bias=False, qk_layernorm=False,
                        use_parallel_residual=False),
        query_bias="use_qkv_bias", norm_bias=True, one_norm_if="use_parallel_residual", whole_norm="qk_layernorm",
        reads_head_dim=False,
    ),
    "smollm3": DecoderFamily(
        defaults=_sizes(128256, 2048, 11008, 36, 16, 4, tie_word_embeddings=True, **_NO_BIAS),
        query_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "glm4": DecoderFamily(
        defaults=_sizes(151552, 4096, 13696, 40, 32, 2, head_dim=128, attention_bias=True),
        query_bias="attention_bias", norms=4,
    ),
}  # fmt: skip
"""By the model_type of their config."""
