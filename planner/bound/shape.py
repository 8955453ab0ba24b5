"""The sizes of a transformer's layers, where its config says them in a way that is understood."""

from __future__ import annotations

from dataclasses import dataclass

from planner.bound.config_values import ConfigValues, UnknownSizeError
from planner.bound.decoders import DECODERS
from planner.bound.parameters import FAMILIES, elements_of
from planner.job.schema import Decoder, Model


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
