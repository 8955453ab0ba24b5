"""Counts the parameters of decoder models, dense and with experts, from their transformers config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.job.field_checks import MOST
from planner.job.schema import Decoder


class UnknownSizeError(Exception):
    """The config does not say a size in a way that is understood; transformers may still take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues:
    """A config's content over the defaults of its class; `aliases` are other names that transformers takes."""

    content: Mapping[str, Any]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def whole(self, name: str, *, least: int = 1) -> int:
        """A whole number. Raises UnknownSizeError for anything else, null included."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise UnknownSizeError(name)
        return value

    def whole_or(self, name: str, otherwise: int) -> int:
        """A whole number, or `otherwise` where it is null or not said. Raises UnknownSizeError."""
        return otherwise if self._value(name) is None else self.whole(name)

    def flag(self, name: str) -> bool:
        """True or false. Raises UnknownSizeError for anything else."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise UnknownSizeError(name)
        return value

    def is_null(self, name: str) -> bool:
        """Whether it is null or not said. Raises UnknownSizeError if two names contradict each other."""
        return self._value(name) is None

    def multiples(self, name: str, *, step: int, below: int) -> int:
        """How many different n from 1 to `below` that `step` divides a list has as n - 1. Raises UnknownSizeError."""
        value = self._value(name)
        if value is None:
            return 0
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise UnknownSizeError(name)
        return len({index for index in value if 0 <= index < below and (index + 1) % step == 0})

    def _value(self, name: str) -> Any:
        names = (name, *(alias for alias, meant in self.aliases.items() if meant == name))
        written = [self.content[key] for key in names if key in self.content]
        if any(value != written[0] for value in written):
            raise UnknownSizeError(name)
        return written[0] if written else self.defaults.get(name)


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of parameters, each of which a training step gives a gradient: of the model's body, and of its head.

    A head that shares the weight of an embedding counts without it. Classes for other tasks have the body alone and
    a head of their own, which is not counted.
    """

    body: int
    head: int = 0


def linear(inputs: int, outputs: int, *, bias: bool = False) -> int:
    """Elements of nn.Linear."""
    return outputs * (inputs + bias)


def layer_norm(size: int, *, bias: bool = True) -> int:
    """Elements of nn.LayerNorm; without a bias those of nn.RMSNorm."""
    return size * (1 + bias)


# Shapes are those of transformers 5.23 (models/*/modeling_*.py, the `__init__` of attention, MLP, layer and model),
# the defaults those of its configs. Tests hold each family to its class.
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
class Family:
    """The models of one model type."""

    main_class: str
    """As which a config without `architectures` is built, whose head is counted (transformers 5.23,
    models/auto/modeling_auto.py)."""
    defaults: Mapping[str, Any]
    """Of the config."""
    aliases: Mapping[str, str] = field(default_factory=dict)

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily(Family):
    """What the decoders of one model type have beside q, k, v, o, the MLP and the two embeddings."""

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
        layers, hidden = values.whole("num_hidden_layers", least=0), values.whole("hidden_size")
        vocab = values.whole("vocab_size")
        norms = 1 if self.one_norm_if and values.flag(self.one_norm_if) else self.norms
        layer = self.attention(values) + norms * layer_norm(hidden, bias=self.norm_bias)
        body = vocab * hidden + layers * layer + self.mlps(values, layers) + layer_norm(hidden, bias=self.norm_bias)
        head = 0 if values.flag("tie_word_embeddings") else vocab * hidden
        return Elements(body, head + vocab * self.head_bias)

    def attention(self, values: ConfigValues) -> int:
        """Of one layer."""
        hidden, heads, size = values.whole("hidden_size"), values.whole("num_attention_heads"), self.head_size(values)
        pairs = values.whole_or("num_key_value_heads", heads)
        elements = linear(hidden, (heads + 2 * pairs) * size, bias=_has(values, self.query_bias))
        elements += linear(heads * size, hidden, bias=_has(values, self.output_bias))
        if _has(values, self.head_norm):
            elements += 2 * layer_norm(size, bias=self.head_norm_bias)
        if _has(values, self.whole_norm):
            elements += (heads + pairs) * (hidden // heads if self.whole_norm_of_hidden else size)
        return elements

    def mlps(self, values: ConfigValues, layers: int) -> int:
        """Of all layers."""
        return layers * self.mlp(values, values.whole("intermediate_size"))

    def mlp(self, values: ConfigValues, inside: int) -> int:
        """Of one layer, of this inner size."""
        hidden, bias = values.whole("hidden_size"), _has(values, self.mlp_bias)
        into = (2 if self.gated else 1) * linear(hidden, inside, bias=bias)
        return into + linear(inside, hidden, bias=bias)

    def head_size(self, values: ConfigValues) -> int:
        """Elements of one head."""
        usual = values.whole("hidden_size") // values.whole("num_attention_heads")
        return values.whole_or("head_dim", usual) if self.reads_head_dim else usual


def _has(values: ConfigValues, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else values.flag(flag)


# Experts of transformers 5.23 lie in one tensor for each matrix. All of an expert's elements have a gradient, whether
# or not a token reaches it.
@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureFamily(DecoderFamily):
    """A decoder and its experts. `inside` is the key of an expert's inner size."""

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

    def attention(self, values: ConfigValues) -> int:
        """Of one layer."""
        return DecoderFamily.attention(self, values) + self.sinks * values.whole("num_attention_heads")

    def mlps(self, values: ConfigValues, layers: int) -> int:
        """Of all layers: every n-th has experts, but those that are listed."""
        hidden, experts, inside = values.whole("hidden_size"), values.whole(self.experts), values.whole(self.inside)
        expert = linear(hidden, 2 * inside, bias=self.expert_bias) + linear(inside, hidden, bias=self.expert_bias)
        layer = linear(hidden, experts, bias=self.expert_bias) + experts * expert
        if self.shared:
            layer += 3 * hidden * values.whole(self.shared) + hidden
        sparse = layers
        if self.sparse_step:
            step = values.whole("decoder_sparse_step")
            sparse = layers // step - values.multiples("mlp_only_layers", step=step, below=layers)
        dense = layers - sparse
        return sparse * layer + (DecoderFamily.mlps(self, values, dense) if dense else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentMixtureFamily(DecoderFamily):
    """DeepSeek's: keys and values from a latent vector, the first layers with an MLP, experts for all tokens."""

    def attention(self, values: ConfigValues) -> int:
        """Of one layer."""
        hidden, heads = values.whole("hidden_size"), values.whole("num_attention_heads")
        latent, rotary = values.whole("kv_lora_rank"), values.whole("qk_rope_head_dim")
        plain, value = values.whole("qk_nope_head_dim"), values.whole("v_head_dim")
        bias = values.flag("attention_bias")
        elements = linear(hidden, latent + rotary, bias=bias) + layer_norm(latent, bias=False)
        elements += linear(latent, heads * (plain + value)) + linear(heads * value, hidden, bias=bias)
        queries = heads * (plain + rotary)
        if values.is_null("q_lora_rank"):
            return elements + linear(hidden, queries)
        rank = values.whole("q_lora_rank")
        return elements + linear(hidden, rank, bias=bias) + layer_norm(rank, bias=False) + linear(rank, queries)

    def mlps(self, values: ConfigValues, layers: int) -> int:
        """Of all layers, of which the first have no experts."""
        dense = min(values.whole("first_k_dense_replace", least=0), layers)
        elements = DecoderFamily.mlps(self, values, dense) if dense else 0
        if dense < layers:
            hidden, experts = values.whole("hidden_size"), values.whole("n_routed_experts")
            inside = values.whole("moe_intermediate_size")
            shared = self.mlp(values, inside * values.whole("n_shared_experts"))
            elements += (layers - dense) * (experts * (hidden + 3 * hidden * inside) + shared)
        return elements
