"""Builds a model from a transformers `config.json`, with the head it is trained for: no weights, no network."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from huggingface_hub.errors import OfflineModeIsEnabled
from torch import nn
from transformers.models.auto import modeling_auto

from planner import upstream
from planner.errors import SpecError
from planner.job import schema
from planner.job.nodes import did_you_mean

# The tables of classes are those of transformers' `models/auto/modeling_auto.py` (5.23), which knows for each model
# type the class with a given head.
_TABLES = {
    "image_text_to_text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "contrastive": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech_seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "masked_lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "image_classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "semantic_segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "audio_classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "sequence_classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question_answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "masked_image_modeling": "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
"""The order is the order in which a head is looked for when neither the job nor the config names one: BART also has a
causal head and BERT too, but neither is trained with it by default."""

HEADS = tuple(_TABLES)


def class_of(config: Any, head: str, architectures: Any) -> Any:
    """The transformers class for a config: that of `head` if one is asked for, else the first architecture.

    Without either, the first head of the table for which this model type has a class. Raises SpecError for a head
    that does not exist or that the model type does not have.
    """
    if head:
        return _class_with_head(config.model_type, head)
    named = (name for name in architectures or () if isinstance(name, str) and hasattr(transformers, name))
    by_head = filter(None, (_class_name(table, config.model_type) for table in HEADS))
    name = next(itertools.chain(named, by_head), "")
    if not name:
        raise SpecError(
            f"transformers {transformers.__version__} has no model class for the model type {config.model_type!r}",
            remedy="name the class in the config's architectures",
            place="model.hf_config",
        )
    return getattr(transformers, name)


def find_head(model: Any) -> str:
    """The head of a model that has been built; empty for a class that is in no table."""
    name = type(model).__name__
    model_type = model.config.model_type
    return next((head for head in HEADS if _class_name(head, model_type) == name), "")


def _class_with_head(model_type: str, head: str) -> Any:
    if head not in _TABLES:
        remedy = did_you_mean(head, HEADS)
        raise SpecError(f"unknown head {head!r}", allowed=", ".join(HEADS), remedy=remedy, place="model.head")
    name = _class_name(head, model_type)
    if not name:
        has = [other for other in HEADS if _class_name(other, model_type)]
        raise SpecError(f"{model_type} has no {head} head", allowed=", ".join(has), place="model.head")
    return getattr(transformers, name)


def _class_name(head: str, model_type: str) -> str:
    table: Mapping[str, Any] = getattr(modeling_auto, _TABLES[head], {})
    name = table.get(model_type, "")
    return str(name[0] if isinstance(name, tuple | list) else name)


_PLACE = "model.hf_config"
_NOT_OF_THE_MODEL = ("dtype", "torch_dtype", "quantization_config", "architectures", "transformers_version")
"""Keys of a config.json that say how a checkpoint was stored, not what the model is."""
_REMOTE_CODE = ("auto_map", "trust_remote_code")
"""Where the code of a model lies on a hub. Published configs keep it although transformers has the model by now."""


def from_config(model: schema.Model, dtype: torch.dtype) -> nn.Module:
    """The model that the config describes, with random weights of `dtype`, on the current default device.

    The key-value cache is off, as transformers' Trainer has it (`use_cache` of TrainingArguments, 5.23). Dtype and
    quantization of the config are those of a stored checkpoint and do not count. Experts of a mixture run through
    transformers' own default, grouped matmuls (`experts_implementation` unset is `grouped_mm`), which route without
    reading values on the host; the config may name another.
    Raises SpecError for a config that transformers cannot make a model of.
    """
    content = dict(model.hf_config or {})
    config = _config(content)
    _prepare(config)
    build: Any = class_of(config, model.head, content.get("architectures"))
    if "SequenceClassification" in build.__name__ and getattr(config, "pad_token_id", None) is None:
        # Decoders look for the last token that is not padding.
        config.pad_token_id = 0
    # sdpa where the class has it; else what transformers chooses itself, which is eager.
    has_sdpa = getattr(build, "_supports_sdpa", False)
    attention = None if model.attention == "sdpa" and not has_sdpa else model.attention
    try:
        with _quiet_and_offline():
            module = build._from_config(config, dtype=dtype, attn_implementation=attention)
    except SpecError:
        raise
    except Exception as failure:
        _refuse_network(failure)
        raise SpecError(
            f"transformers cannot build {build.__name__} from the config: {type(failure).__name__}: {failure}",
            remedy="check the sizes in the config",
            place=_PLACE,
        ) from failure
    return module  # type: ignore[no-any-return]


@contextmanager
def _quiet_and_offline() -> Iterator[None]:
    """transformers remarks on tokens and kernels that concern generation and speed, not a training step's memory; and
    some configs name a backbone on a hub, which it would fetch."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        with upstream.patch_targets("hub offline", replaced={"huggingface_hub.constants:HF_HUB_OFFLINE": True}):
            yield
    finally:
        transformers.logging.set_verbosity(before)


def _config(content: Mapping[str, Any]) -> Any:
    model_type = content.get("model_type")
    known = transformers.CONFIG_MAPPING
    if not isinstance(model_type, str) or not model_type:
        raise SpecError("the config names no model_type", allowed="a config.json of transformers", place=_PLACE)
    _refuse_remote_code(content, _PLACE)
    if model_type not in known:
        raise SpecError(
            f"unknown model type {model_type!r}",
            allowed=f"the {len(known.keys())} model types of transformers {transformers.__version__}",
            remedy=did_you_mean(model_type, known.keys()) or "use a factory",
            place=_PLACE,
        )
    local = _without_remote_code(content)
    kept = {k: copy.deepcopy(v) for k, v in local.items() if k not in _NOT_OF_THE_MODEL and k != "model_type"}
    try:
        with _quiet_and_offline():
            return known[model_type](**kept)
    except Exception as failure:
        _refuse_network(failure)
        raise SpecError(
            f"transformers does not take this {model_type} config: {type(failure).__name__}: {failure}",
            remedy="check the values in the config",
            place=_PLACE,
        ) from failure


def _refuse_network(failure: BaseException | None) -> None:
    while failure is not None and not isinstance(failure, OfflineModeIsEnabled):
        failure = failure.__cause__ or failure.__context__
    if failure is not None:
        raise SpecError(
            "the config names something that transformers would fetch from a hub, and planner goes to no network",
            allowed="a config that says everything about its model",
            remedy="write the config of the part into it: `backbone_config` in place of `backbone`, say",
            place=_PLACE,
        ) from failure


def _refuse_remote_code(content: Mapping[str, Any], place: str) -> None:
    """A config, or one inside it, whose model transformers does not have itself but a hub would."""
    model_type = content.get("model_type")
    if any(content.get(key) for key in _REMOTE_CODE) and model_type not in transformers.CONFIG_MAPPING:
        raise SpecError(
            f"transformers {transformers.__version__} has no model type {model_type!r} itself, and planner runs no "
            "remote code (auto_map)",
            allowed="model types that transformers itself has",
            remedy="write a factory that builds the model from code you trust",
            place=place,
        )
    for name, part in content.items():
        if isinstance(part, Mapping) and "model_type" in part:
            _refuse_remote_code(part, f"{place}.{name}")


def _without_remote_code(content: Mapping[str, Any]) -> dict[str, Any]:
    local = {name: part for name, part in content.items() if name not in _REMOTE_CODE}
    return {name: _without_remote_code(part) if isinstance(part, Mapping) else part for name, part in local.items()}


def _prepare(config: Any) -> None:
    for part in _with_parts(config):
        if hasattr(part, "use_cache"):
            part.use_cache = False
        if not getattr(part, "is_encoder_decoder", False):
            continue
        # Labels are shifted to the right by hand inside the model, which wants to know what comes first.
        if getattr(part, "pad_token_id", None) is None:
            part.pad_token_id = 0
        if getattr(part, "decoder_start_token_id", None) is None:
            part.decoder_start_token_id = part.pad_token_id


def _with_parts(config: Any) -> list[Any]:
    parts = [config]
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            parts.extend(_with_parts(part))
    return parts
