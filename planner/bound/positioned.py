"""Parameters of models with learnt positions: GPT-2 and its kin, OPT, BERT, RoBERTa, the vision transformer.

Shapes and defaults are those of transformers 5.23 (models/*/modeling_*.py, configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.bound.config_values import ConfigValues, UnknownSizeError
from planner.bound.elements import Elements, layer_norm, linear


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
