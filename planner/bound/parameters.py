"""How many elements the parameters of a job's model have at least."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from planner.bound.config_values import ConfigValues, UnknownSizeError
from planner.bound.decoders import DECODERS, built_in
from planner.bound.elements import Elements
from planner.bound.mixtures import MIXTURES
from planner.bound.positioned import POSITIONED
from planner.job.schema import Model


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
