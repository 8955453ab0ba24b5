"""Finds a transformers model's inputs from its config, its head and its forward's signature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from planner.errors import SpecError
from planner.job import schema
from planner.job.schema import Input
from planner.training import batch_shapes
from planner.training.batch_shapes import Feed
from planner.training.models import transformers_models

DEFAULT_IMAGE_SIZE = 224
DEFAULT_SAMPLES = 160_000
"""Ten seconds at 16 kHz, for models of raw audio; `train.inputs` says otherwise."""


def feed_of(model: nn.Module, spec: schema.Job) -> Feed:
    """The inputs of this model: text with an attention mask only under `train.padding`; videos frame by frame.

    Sizes not in the config: images are 224 pixels square, raw audio 160,000 samples. Raises SpecError for a model of
    tokens without `train.sequence_length`.
    """
    config: Any = model.config
    head = transformers_models.head_of(model)
    takes = batch_shapes.of_forward(model)
    main = str(model.main_input_name)
    if "pixel_values" in takes.names and "input_ids" in takes.names:
        return _with_mask(_image_and_text(config, takes, spec), takes, spec)
    if main == "pixel_values":
        return _image(config, head)
    if main in ("input_features", "input_values"):
        return _audio(config, head, main, takes, spec)
    if main == "input_ids":
        return _with_mask(_text(config, head, takes, spec), takes, spec)
    if spec.train.inputs:
        return Feed(arguments={})
    raise SpecError(
        f"what {type(model).__name__} takes as {main} is not known",
        allowed=f"train.inputs with {main}: {{shape: [...], dtype: ...}}",
        place="train.inputs",
    )


def _with_mask(feed: Feed, takes: batch_shapes.ForwardSignature, spec: schema.Job) -> Feed:
    """A padded batch has its mask beside the tokens."""
    if spec.train.padding == "none":
        return feed
    if "attention_mask" not in takes.names:
        raise SpecError(
            f"train.padding is {spec.train.padding}, and the model takes no attention_mask",
            allowed="none",
            place="train.padding",
        )
    mask = Input(shape=feed.arguments["input_ids"].shape, dtype="int64")
    return replace(feed, arguments={**feed.arguments, "attention_mask": mask}, padded=True)


def _text(config: Any, head: str, takes: batch_shapes.ForwardSignature, spec: schema.Job) -> Feed:
    tokens = _tokens(config, spec)
    feed = Feed(arguments={"input_ids": tokens})
    if config.is_encoder_decoder and "decoder_input_ids" in takes.names:
        # With labels the model shifts them itself; a loss by hand needs the decoder's input.
        return replace(feed, labels={"labels": tokens}, by_hand={"decoder_input_ids": tokens})
    if head == "sequence_classification":
        return replace(feed, labels=_classes(config))
    if head == "token_classification":
        return replace(feed, labels=_classes(config, *tokens.shape))
    if head == "question_answering":
        position = Input(shape=(), dtype="int64", maximum=tokens.shape[0])
        return replace(feed, labels={"start_positions": position, "end_positions": position}, own_loss=True)
    return replace(feed, labels={"labels": tokens}) if "labels" in takes.names and head != "base" else feed


def _image(config: Any, head: str) -> Feed:
    vision = getattr(config, "vision_config", config)
    feed = Feed(arguments={"pixel_values": _pixels(vision)})
    if head == "image_classification":
        return replace(feed, labels=_classes(config))
    if head == "semantic_segmentation":
        return replace(feed, labels=_classes(config, *_image_size(vision)))
    if head == "masked_image_modeling":
        masked = Input(shape=(_patches(vision),), dtype="bool")
        return replace(feed, arguments={**feed.arguments, "bool_masked_pos": masked}, own_loss=True)
    return feed


def _audio(config: Any, head: str, main: str, takes: batch_shapes.ForwardSignature, spec: schema.Job) -> Feed:
    feed = Feed(arguments={main: _sound_input(config, spec)})
    if "decoder_input_ids" in takes.names:
        tokens = _tokens(config, spec, longest=getattr(config, "max_target_positions", 0))
        return replace(feed, labels={"labels": tokens}, by_hand={"decoder_input_ids": tokens})
    if head == "audio_classification":
        return replace(feed, labels=_classes(config))
    if head == "ctc":
        # A transcript is shorter than its frames; a loss by hand takes a class for each frame instead.
        transcript = Input(shape=(spec.train.sequence_length or 16,), dtype="int64", maximum=config.vocab_size)
        return replace(feed, own_labels={"labels": transcript})
    return feed


def _image_and_text(config: Any, takes: batch_shapes.ForwardSignature, spec: schema.Job) -> Feed:
    text, vision = getattr(config, "text_config", config), getattr(config, "vision_config", config)
    tokens = _tokens(text, spec, longest=getattr(text, "max_position_embeddings", 0))
    of_text = Feed(arguments={"input_ids": tokens})
    feed = Feed(arguments={**of_text.arguments, "pixel_values": _pixels(vision)})
    if "return_loss" in takes.names:
        return replace(feed, constants={"return_loss": True}, own_loss=True)
    labels = {"labels": tokens} if "labels" in takes.names else {}
    markers = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    marker = next((marker for marker in markers if isinstance(marker, int)), -1)
    if marker < 0:
        return replace(feed, labels=labels)
    count = _image_tokens(config, vision)
    if not count or "aspect_ratio_ids" in takes.names:  # pictures in as many tiles as their shape asks for (mllama)
        return replace(of_text, labels=labels)
    if count >= tokens.shape[0]:
        raise SpecError(
            f"an image takes {count} of the {tokens.shape[0]} tokens of a sequence",
            remedy=f"raise train.sequence_length above {count}",
            place="train.sequence_length",
        )
    return replace(feed, labels=labels, image_token=marker, image_tokens=count)


def _tokens(config: Any, spec: schema.Job, *, longest: int = 0) -> Input:
    length = spec.train.sequence_length or longest
    if not length:
        raise SpecError(
            f"a {config.model_type} model takes tokens, and their number is not said",
            allowed="a whole number from 1",
            place="train.sequence_length",
        )
    if longest:
        length = min(length, longest)
    vocab = int(getattr(config, "vocab_size", 0) or getattr(config.get_text_config(), "vocab_size", 2))
    return Input(shape=(length,), dtype="int64", maximum=vocab)


def _classes(config: Any, *shape: int) -> dict[str, Input]:
    return {"labels": Input(shape=shape, dtype="int64", maximum=config.num_labels)}


def _pixels(config: Any) -> Input:
    image = (getattr(config, "num_channels", 3), *_image_size(config))
    frames = getattr(config, "num_frames", 0)
    return Input(shape=(frames, *image) if frames else image)


def _image_size(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[1])
    return int(size), int(size)


def _patches(config: Any) -> int:
    (height, width), patch = _image_size(config), getattr(config, "patch_size", 16)
    size = int(patch[0] if isinstance(patch, list | tuple) else patch)
    return (height // size) * (width // size)


def _sound_input(config: Any, spec: schema.Job) -> Input:
    bins = getattr(config, "num_mel_bins", 0)
    if not bins:
        return Input(shape=(DEFAULT_SAMPLES,))
    frames = getattr(config, "max_source_positions", 0)
    if frames and hasattr(config, "max_target_positions"):
        # Whisper: bins before frames, and its encoder halves the number of frames.
        return Input(shape=(bins, 2 * frames))
    return Input(shape=(getattr(config, "max_length", 0) or spec.train.sequence_length or 1024, bins))


def _image_tokens(config: Any, vision: Any) -> int:
    """How many tokens stand for one image; 0 where that is not known, and the model is trained on text."""
    count = getattr(config, "mm_tokens_per_image", None)
    if isinstance(count, int):
        return count
    if not hasattr(vision, "image_size") or not hasattr(vision, "patch_size"):
        return 0
    if getattr(vision, "model_type", "") == "pixtral":
        return 0  # its pictures have any size up to `image_size`, which the batch says beside them
    if getattr(config, "vision_feature_select_strategy", "default") == "full":
        return _patches(vision) + 1
    return math.ceil(_patches(vision) / getattr(config, "scale_factor", 1) ** 2)
