"""Counts the parameters of a job's model, and finds the sizes of its layers, from its config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.job.bound.decoders import (
    DECODERS,
    MIXTURES,
    ConfigValues,
    DecoderFamily,
    Elements,
    Family,
    UnknownSizeError,
    built_in,
    layer_norm,
    linear,
)
from planner.job.schema import Model


# Shapes and defaults are those of transformers 5.23 (models/*/modeling_*.py, configuration_*.py).
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
    config = model.hf_config or {}
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return 0
    family, main = FAMILIES[model_type], CLASSES[model_type]
    try:
        elements = family.elements(ConfigValues(content=config, defaults=family.defaults, aliases=family.aliases))
    except UnknownSizeError:
        return 0
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    # A class that is no text names none, and nobody knows which comes then.
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
    family = FAMILIES[config["model_type"]]
    # With a family's own names read as the usual ones.
    defaults = dict(family.defaults)
    for usual, others in _NAMES.items():
        for other in others:
            if other in defaults:
                defaults.setdefault(usual, defaults[other])
    try:
        values = ConfigValues(content=config, defaults=defaults, aliases=family.aliases)
        return _shape_of_values(values, DECODERS.get(config["model_type"]), elements)
    except UnknownSizeError:
        return None


_NAMES = {
    "hidden_size": ("n_embd",), "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head", "num_heads"),
}  # fmt: skip


def _shape_of_values(values: ConfigValues, family: DecoderFamily | None, elements: int) -> Shape:
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
        head_size=values.whole_or("head_dim", hidden // heads) if family is None else family.head_size(values),
        vocab=vocab,
        elements=elements,
        active_elements=max(elements - idle - (0 if tied else vocab * hidden), 1),
        gated_ffn=values.whole("intermediate_size") if family is not None and family.gated else 0,
        is_mixture=experts > 0,
        routed=routed,
    )
