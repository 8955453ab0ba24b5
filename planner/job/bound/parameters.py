"""Counts the parameters of a job's model, and finds the sizes of its layers, from its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from planner.job.bound.decoders import (
    DECODERS,
    MIXTURES,
    ConfigValues,
    Elements,
    UnknownSizeError,
    built_in,
    layer_norm,
    linear,
)
from planner.job.schema import Decoder, Model


# Shapes and defaults are those of transformers 5.23 (models/*/modeling_*.py, configuration_*.py).
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFamily:
    """A model type with a formula of its own."""

    formula: Callable[[ConfigValues], Elements]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)

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


_GPT2_NAMES = {
    "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}  # fmt: skip
_BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072,
    "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
}  # fmt: skip

POSITIONED: dict[str, OwnFamily] = {
    "gpt2": OwnFamily(
        formula=_gpt2, aliases=_GPT2_NAMES,
        defaults={"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "tie_word_embeddings": True},
    ),
    "gptj": OwnFamily(
        formula=_gptj, aliases=_GPT2_NAMES,
        defaults={"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "tie_word_embeddings": False},
    ),
    "gpt_neo": OwnFamily(
        formula=_gpt_neo, aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        defaults={"vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048, "num_layers": 24,
                  "tie_word_embeddings": True},
    ),
    "gpt_neox": OwnFamily(
        formula=_gpt_neox,
        defaults={"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "intermediate_size": 24576,
                  "attention_bias": True, "tie_word_embeddings": False},
    ),
    "opt": OwnFamily(
        formula=_opt,
        defaults={"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
                  "max_position_embeddings": 2048, "enable_bias": True, "layer_norm_elementwise_affine": True,
                  "do_layer_norm_before": True, "_remove_final_layer_norm": False, "tie_word_embeddings": True},
    ),
    "bert": OwnFamily(formula=_bert, defaults=_BERT),
    "roberta": OwnFamily(formula=_bert, defaults=_BERT | {"vocab_size": 50265}),
    "xlm-roberta": OwnFamily(formula=_bert, defaults=_BERT),
    "vit": OwnFamily(
        formula=_vit,
        defaults={"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "image_size": 224,
                  "patch_size": 16, "num_channels": 3, "qkv_bias": True},
    ),
}  # fmt: skip
"""By the model_type of their config."""


class Family(Protocol):
    """The models of one model type."""

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Of the config."""

    def elements(self, values: ConfigValues) -> Elements:
        """Raises UnknownSizeError."""


FAMILIES: Mapping[str, Family] = {**DECODERS, **MIXTURES, **POSITIONED}
"""By the model_type of their config."""

CLASSES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM", "nemotron": "NemotronForCausalLM", "phi": "PhiForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "granite": "GraniteForCausalLM", "cohere": "CohereForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM", "stablelm": "StableLmForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "glm4": "Glm4ForCausalLM", "mixtral": "MixtralForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "olmoe": "OlmoeForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "gpt2": "GPT2LMHeadModel",
    "gptj": "GPTJForCausalLM", "gpt_neo": "GPTNeoForCausalLM", "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM", "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM", "vit": "ViTForImageClassification",
}  # fmt: skip
"""The class that a config without `architectures` is built as, whose head is counted; transformers 5.23,
models/auto/modeling_auto.py."""

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
    if model.hf_config is None:
        return 0
    try:
        return _of_config(model.hf_config, model.head)
    except UnknownSizeError:
        return 0


def _of_config(config: Mapping[str, Any], head: str) -> int:
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or not isinstance(model_type, str):
        return 0
    aliases = getattr(family, "aliases", {})
    found = family.elements(ConfigValues(content=config, defaults=family.defaults, aliases=aliases))
    main, others = _classes(CLASSES[model_type])
    wanted = head or _first_architecture(config) or main
    if wanted == main or (head and CLASSES[model_type].endswith(tuple(_suffixes(head)))):
        return found.body + found.head
    return found.body if wanted in others else 0


def _first_architecture(config: Mapping[str, Any]) -> str:
    """The class that the config names; one that is no text names none, and nobody knows which comes then."""
    named = config.get("architectures")
    if not named:
        return ""
    first = named[0] if isinstance(named, list) else None
    return first if isinstance(first, str) and first else "?"


def _classes(main: str) -> tuple[str, set[str]]:
    """The class with the usual head, and the names of those for other tasks: their class, or the head's name."""
    prefix = next(main.removesuffix(each) for each in _HEADS if main.endswith(each))
    prefixes = (prefix, f"{prefix}Text")  # Gemma3ForCausalLM, Gemma3TextForSequenceClassification
    return main, {*_OTHER_HEADS, *(each + task for each in prefixes for task in _OTHER_HEADS.values())}


def _suffixes(head: str) -> list[str]:
    return [suffix for suffix, name in _HEADS.items() if name == head]


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
    if model.decoder is not None:
        return _built_in(model.decoder, elements_of(model))
    elements = elements_of(model)
    if model.hf_config is None or not elements:
        return None
    family = FAMILIES[model.hf_config["model_type"]]
    aliases = getattr(family, "aliases", {})
    try:
        return _of_values(ConfigValues(content=model.hf_config, defaults=_defaults(family.defaults), aliases=aliases),
                          model.hf_config["model_type"], elements)  # fmt: skip
    except UnknownSizeError:
        return None


def _built_in(decoder: Decoder, elements: int) -> Shape:
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


_NAMES = {
    "hidden_size": ("n_embd",), "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head", "num_heads"),
}  # fmt: skip


def _defaults(defaults: object) -> dict[str, object]:
    """With a family's own names read as the usual ones."""
    found = dict(defaults) if isinstance(defaults, dict) else {}
    for usual, others in _NAMES.items():
        for other in others:
            if other in found:
                found.setdefault(usual, found[other])
    return found


def _of_values(values: ConfigValues, model_type: str, elements: int) -> Shape:
    hidden, heads = _first(values, "hidden_size"), _first(values, "num_attention_heads")
    vocab = values.whole_or("vocab_size", 0) if not values.is_null("vocab_size") else 0
    tied = not values.is_null("tie_word_embeddings") and values.flag("tie_word_embeddings")
    family = DECODERS.get(model_type)
    layers, experts = _first(values, "num_hidden_layers"), _experts(values)
    routed = values.whole("num_experts_per_tok") if experts and not values.is_null("num_experts_per_tok") else 0
    idle = layers * (experts - routed) * 3 * hidden * _expert_size(values) if routed else 0
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if values.is_null("num_key_value_heads") else values.whole("num_key_value_heads"),
        head_size=family.head_size(values) if family is not None else _head_size(values, hidden, heads),
        vocab=vocab,
        elements=elements,
        active_elements=max(elements - idle - (0 if tied else vocab * hidden), 1),
        gated_ffn=values.whole("intermediate_size") if family is not None and family.gated else 0,
        is_mixture=experts > 0,
        routed=routed,
    )


def _first(values: ConfigValues, name: str) -> int:
    for each in (name, *_NAMES.get(name, ())):
        if not values.is_null(each):
            return values.whole(each)
    raise UnknownSizeError(name)


def _head_size(values: ConfigValues, hidden: int, heads: int) -> int:
    return hidden // heads if values.is_null("head_dim") else values.whole("head_dim")


def _experts(values: ConfigValues) -> int:
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if not values.is_null(name):
            return values.whole(name)
    return 0


def _expert_size(values: ConfigValues) -> int:
    name = "intermediate_size" if values.is_null("moe_intermediate_size") else "moe_intermediate_size"
    return values.whole(name)
