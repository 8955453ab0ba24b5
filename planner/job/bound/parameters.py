"""Counts the parameters of a job's model, and finds the sizes of its layers, from its config.

Shapes are those of transformers 5.23 (models/*/modeling_*.py, the `__init__` of attention, MLP, layer and model); the
families and the defaults of their configs (configuration_*.py) are in model_families.json. Tests hold each family to
its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from planner.job.field_checks import MOST
from planner.job.json_text import packaged_json
from planner.job.schema import Decoder, Model


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFamily(Family):
    """A model type with a formula of its own."""

    formula: Callable[[ConfigValues], Elements]

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""
        return self.formula(values)


def _block(hidden: int, inside: int, *, norms: int = 2) -> int:
    """Attention and MLP with a bias everywhere."""
    attention = 4 * linear(hidden, hidden, bias=True)
    mlp = linear(hidden, inside, bias=True) + linear(inside, hidden, bias=True)
    return attention + mlp + norms * layer_norm(hidden)


def _gpt2(values: ConfigValues) -> Elements:
    hidden, vocab = values.whole("n_embd"), values.whole("vocab_size")
    layers = values.whole("n_layer", least=0) * _block(hidden, values.whole_or("n_inner", 4 * hidden))
    body = (vocab + values.whole("n_positions")) * hidden + layers + layer_norm(hidden)
    return Elements(body, _untied_head(values, vocab * hidden))


def _gptj(values: ConfigValues) -> Elements:
    hidden, vocab = values.whole("n_embd"), values.whole("vocab_size")
    inside = values.whole_or("n_inner", 4 * hidden)
    mlp = linear(hidden, inside, bias=True) + linear(inside, hidden, bias=True)
    layers = values.whole("n_layer", least=0) * (4 * linear(hidden, hidden) + mlp + layer_norm(hidden))
    return Elements(vocab * hidden + layers + layer_norm(hidden), _untied_head(values, vocab * hidden) + vocab)


def _gpt_neo(values: ConfigValues) -> Elements:
    """Queries, keys and values without a bias."""
    hidden, vocab = values.whole("hidden_size"), values.whole("vocab_size")
    layer = _block(hidden, values.whole_or("intermediate_size", 4 * hidden)) - 3 * hidden
    body = (vocab + values.whole("max_position_embeddings")) * hidden + layer_norm(hidden)
    body += values.whole("num_layers", least=0) * layer
    return Elements(body, _untied_head(values, vocab * hidden))


def _gpt_neox(values: ConfigValues) -> Elements:
    hidden, vocab = values.whole("hidden_size"), values.whole("vocab_size")
    layer = _block(hidden, values.whole("intermediate_size"))
    layer -= 0 if values.flag("attention_bias") else 4 * hidden
    body = vocab * hidden + values.whole("num_hidden_layers", least=0) * layer + layer_norm(hidden)
    return Elements(body, _untied_head(values, vocab * hidden))


_OPT_POSITIONS_IN_FRONT = 2
"""OPTLearnedPositionalEmbedding.offset (modeling_opt.py)."""


def _opt(values: ConfigValues) -> Elements:
    """Only as its published models are, none of which leaves layers out at random (`layerdrop`)."""
    hidden, vocab = values.whole("hidden_size"), values.whole("vocab_size")
    narrow = values.whole_or("word_embed_proj_dim", hidden)
    usual = values.flag("enable_bias") and values.flag("layer_norm_elementwise_affine")
    if not usual or values.content.get("layerdrop", 0.0) != 0:
        raise UnknownSizeError("layerdrop")
    layers = values.whole("num_hidden_layers", least=0) * _block(hidden, values.whole("ffn_dim"))
    body = vocab * narrow + (values.whole("max_position_embeddings") + _OPT_POSITIONS_IN_FRONT) * hidden + layers
    body += 2 * narrow * hidden if narrow != hidden else 0
    if values.flag("do_layer_norm_before") and not values.flag("_remove_final_layer_norm"):
        body += layer_norm(hidden)
    return Elements(body, _untied_head(values, vocab * narrow))


def _bert(values: ConfigValues) -> Elements:
    """The head is a layer, a norm, and the embedding with a bias; its classes have no pooler."""
    hidden, vocab = values.whole("hidden_size"), values.whole("vocab_size")
    rows = vocab + values.whole("max_position_embeddings") + values.whole("type_vocab_size")
    layers = values.whole("num_hidden_layers", least=0) * _block(hidden, values.whole("intermediate_size"))
    head = linear(hidden, hidden, bias=True) + layer_norm(hidden) + vocab
    return Elements(rows * hidden + layer_norm(hidden) + layers, head + _untied_head(values, vocab * hidden))


def _vit(values: ConfigValues) -> Elements:
    """Without the classifier, whose classes a config counts in several ways."""
    hidden, patch = values.whole("hidden_size"), values.whole("patch_size")
    layer = _block(hidden, values.whole("intermediate_size"))
    layer -= 0 if values.flag("qkv_bias") else 3 * hidden
    if not values.is_null("head_dim"):
        raise UnknownSizeError("head_dim")
    positions = (values.whole("image_size") // patch) ** 2 + 1
    embeddings = linear(values.whole("num_channels") * patch * patch, hidden, bias=True) + (positions + 1) * hidden
    return Elements(embeddings + values.whole("num_hidden_layers", least=0) * layer + layer_norm(hidden))


def _untied_head(values: ConfigValues, elements: int) -> int:
    return 0 if values.flag("tie_word_embeddings") else elements


_FORMULAS = {
    "gpt2": _gpt2, "gptj": _gptj, "gpt_neo": _gpt_neo, "gpt_neox": _gpt_neox, "opt": _opt, "bert": _bert, "vit": _vit,
}  # fmt: skip
_DECODERS: Mapping[str, type[DecoderFamily]] = {
    "decoder": DecoderFamily, "mixture": MixtureFamily, "latent mixture": LatentMixtureFamily,
}  # fmt: skip
_USUALLY = {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
"""What the config of a decoder says unless its class has another default."""


@cache
def families() -> Mapping[str, Family]:
    """Every family by the model_type of its config."""
    content = packaged_json("bound/model_families.json")
    found: dict[str, Family] = {}
    for model_type, parts in content.items():
        kind = parts.pop("kind")
        if kind in _DECODERS:
            parts["defaults"] = {**_USUALLY, **parts["defaults"]}
            found[model_type] = _DECODERS[kind](**parts)
        else:
            found[model_type] = OwnFamily(formula=_FORMULAS[kind], **parts)
    return found


_HEADS = {"ForCausalLM": "causal_lm", "LMHeadModel": "causal_lm", "ForMaskedLM": "masked_lm",
          "ForImageClassification": "image_classification"}  # fmt: skip
_OTHER_HEADS = {
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
}
"""Heads over the same body, every parameter of which they train; their own are not counted."""


def elements_of(model: Model) -> int:
    """How many elements the parameters have that are known for sure and get a gradient; 0 where nobody knows."""
    if model.decoder is not None:
        return built_in(model.decoder)
    config = model.hf_config or {}
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in families():
        return 0
    family, main = families()[model_type], families()[model_type].main_class
    try:
        elements = family.elements(ConfigValues(content=config, defaults=family.defaults, aliases=family.aliases))
    except UnknownSizeError:
        return 0
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    # A class that is not a text names none, and nobody knows which comes then.
    architecture = main if not named else first if isinstance(first, str) and first else "?"
    suffixes = tuple(suffix for suffix, name in _HEADS.items() if name == model.head)
    if (model.head or architecture) == main or (model.head and main.endswith(suffixes)):
        return elements.body + elements.head
    prefix = next(main.removesuffix(suffix) for suffix in _HEADS if main.endswith(suffix))
    prefixes = (prefix, f"{prefix}Text")  # Gemma3ForCausalLM, Gemma3TextForSequenceClassification
    others = {*_OTHER_HEADS, *(start + task for start in prefixes for task in _OTHER_HEADS.values())}
    return elements.body if (model.head or architecture) in others else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one model; elements count single numbers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    elements: int
    """Of all parameters."""
    active_elements: int
    """Of those that one token is multiplied with: without the embedding, and of a mixture without the experts that a
    token does not go to."""
    gated_ffn: int = 0
    """Inner size of a gated MLP that each layer has; 0 where layers have none, or others."""
    is_mixture: bool = False
    routed: int = 0
    """Experts that a token goes to."""


def shape_of(model: Model) -> Shape | None:
    """The sizes; None for a factory's model, and for a config that is not understood."""
    elements, decoder, config = elements_of(model), model.decoder, model.hf_config
    if decoder is not None:
        return Shape(
            layers=decoder.layers,
            hidden=decoder.hidden,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            head_size=decoder.head_dim or decoder.hidden // decoder.heads,
            vocab=decoder.vocab,
            elements=elements,
            active_elements=elements - (0 if decoder.tie_embeddings else decoder.vocab * decoder.hidden),
            gated_ffn=decoder.ffn,
        )
    if config is None or not elements:
        return None
    family = families()[config["model_type"]]
    # With a family's own names read as the usual ones.
    defaults = dict(family.defaults)
    for usual, others in _NAMES.items():
        for other in others:
            if other in defaults:
                defaults.setdefault(usual, defaults[other])
    try:
        values = ConfigValues(content=config, defaults=defaults, aliases=family.aliases)
        return _shape_of_values(values, family, elements)
    except UnknownSizeError:
        return None


_NAMES = {
    "hidden_size": ("n_embd",), "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head", "num_heads"),
}  # fmt: skip


def _shape_of_values(values: ConfigValues, family: Family, elements: int) -> Shape:
    dense = family if isinstance(family, DecoderFamily) and type(family) is DecoderFamily else None
    hidden, layers, heads = (
        values.whole(next((name for name in (usual, *others) if not values.is_null(name)), usual))
        for usual, others in _NAMES.items()
    )
    vocab = values.whole_or("vocab_size", 0)
    tied = not values.is_null("tie_word_embeddings") and values.flag("tie_word_embeddings")
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((values.whole(name) for name in counts if not values.is_null(name)), 0)
    routed = values.whole("num_experts_per_tok") if experts and not values.is_null("num_experts_per_tok") else 0
    idle = 0
    if routed:
        inside = "intermediate_size" if values.is_null("moe_intermediate_size") else "moe_intermediate_size"
        idle = layers * (experts - routed) * 3 * hidden * values.whole(inside)
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=values.whole_or("num_key_value_heads", heads),
        head_size=values.whole_or("head_dim", hidden // heads) if dense is None else dense.head_size(values),
        vocab=vocab,
        elements=elements,
        active_elements=max(elements - idle - (0 if tied else vocab * hidden), 1),
        gated_ffn=values.whole("intermediate_size") if dense is not None and dense.gated else 0,
        is_mixture=experts > 0,
        routed=routed,
    )
