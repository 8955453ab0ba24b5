"""Finds the class of a transformers model for what it is trained for: its head.

The tables of classes are those of transformers' `models/auto/modeling_auto.py` (5.23), which knows for each model
type the class with a given head.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from planner.errors import SpecError

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
        return _with_head(config.model_type, head)
    for name in architectures or ():
        if isinstance(name, str) and hasattr(transformers, name):
            return getattr(transformers, name)
    for table in HEADS:
        name = _class_name(table, config.model_type)
        if name:
            return getattr(transformers, name)
    raise SpecError(
        f"transformers {transformers.__version__} has no model class for the model type {config.model_type!r}",
        remedy="name the class in the config's architectures",
        place="model.hf_config",
    )


def head_of(model: Any) -> str:
    """The head of a model that has been built; empty for a class that is in no table."""
    name = type(model).__name__
    model_type = model.config.model_type
    return next((head for head in HEADS if _class_name(head, model_type) == name), "")


def _with_head(model_type: str, head: str) -> Any:
    if head not in _TABLES:
        close = difflib.get_close_matches(head, HEADS, n=3)
        raise SpecError(
            f"unknown head {head!r}",
            allowed=", ".join(HEADS),
            remedy=f"did you mean {', '.join(close)}?" if close else "",
            place="model.head",
        )
    name = _class_name(head, model_type)
    if not name:
        has = [other for other in HEADS if _class_name(other, model_type)]
        raise SpecError(
            f"{model_type} has no {head} head",
            allowed=", ".join(has),
            place="model.head",
        )
    return getattr(transformers, name)


def _class_name(head: str, model_type: str) -> str:
    table: Mapping[str, Any] = getattr(modeling_auto, _TABLES[head], {})
    name = table.get(model_type, "")
    return str(name[0] if isinstance(name, tuple | list) else name)
