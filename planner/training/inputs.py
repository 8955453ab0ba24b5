"""Makes the tensors of a micro-batch on the host and copies them to the device: which, the model and the job say.

Sizes come from the model's own config; whatever `train.inputs` says wins.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from planner.errors import SpecError
from planner.job import schema
from planner.job.sampled_runs import draw_batches
from planner.job.schema import Input

TARGETS = ("labels", "target", "targets")
"""Names in `train.inputs` that the loss gets when the model's forward does not take them."""
_MASK = "attention_mask"
"""How names of masks end, whose gaps are those of `train.padding`."""
DEFAULT_IMAGE_SIZE = 224
DEFAULT_SAMPLES = 160_000
"""Ten seconds at 16 kHz, for models of raw audio; `train.inputs` says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The tensors of a micro-batch, by name, without the batch dim."""

    arguments: Mapping[str, Input]
    """What the model is called with."""
    positional: bool = False
    """Called by position: the forward has none of these names."""
    labels: Mapping[str, Input] = field(default_factory=dict)
    """What the model needs in addition to compute its own loss; the first is the target of a loss by hand."""
    own_labels: Mapping[str, Input] | None = None
    """Where the model's own loss wants other labels than a loss by hand."""
    by_hand: Mapping[str, Input] = field(default_factory=dict)
    """Arguments that the model makes from the labels when it computes its own loss, and needs otherwise."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    own_loss: bool = False
    """The model's output has nothing a loss by hand could start from: only its own loss is possible."""
    padded: bool = False
    """The attention mask has gaps: sequences shorter than the first of their batch are filled up."""
    image_token: int = -1
    image_tokens: int = 0
    """So many of the first tokens of `input_ids` stand for the image."""


@dataclass(slots=True)
class MicroBatch:
    arguments: dict[str, Tensor]
    labels: dict[str, Tensor]

    @property
    def target(self) -> Tensor | None:
        return next(iter(self.labels.values()), None)


@dataclass(frozen=True, slots=True)
class ForwardSignature:
    """The parameters of a model's `forward`, `self` left out."""

    names: tuple[str, ...]
    positional: int
    anything: bool
    """The forward has `**kwargs`."""

    def has(self, name: str) -> bool:
        return self.anything or name in self.names


def forward_signature(model: nn.Module) -> ForwardSignature:
    parameters = inspect.signature(model.forward).parameters.values()
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    unbounded = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return ForwardSignature(
        names=tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)),
        positional=10**6 if unbounded else len(by_position),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def find_feed(model: nn.Module, spec: schema.Job) -> Feed:
    """What this model takes. Raises SpecError if neither the model nor the job says so."""
    given = dict(spec.train.inputs)
    if hasattr(model, "config") and hasattr(model, "main_input_name") and spec.model.hf_config is not None:
        return _override(_transformers_feed(model, spec), given, model)
    length = spec.train.sequence_length
    if not given and length:
        vocab = getattr(model, "vocab", 2)
        tokens = Input(shape=(length,), dtype="int64", maximum=vocab)
        given = {"input_ids": tokens, "labels": tokens}
    if not given:
        raise SpecError(
            "nothing says what the model takes",
            allowed="train.inputs: {NAME: {shape: [3, 224, 224], dtype: float32}}, or train.sequence_length for tokens",
            place="train.inputs",
        )
    return _feed_by_names(model, given)


class BatchesOfLengths(Dataset[dict[str, Tensor]]):
    """The micro-batches of a run with `train.lengths` in their order, on the host."""

    def __init__(self, model: nn.Module, spec: schema.Job, *, own_loss: bool) -> None:
        self._model, self._spec, self._own_loss = model, spec, own_loss
        self._lengths = draw_batches(spec.train)
        self._feeds: dict[int, Feed] = {}

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        length, spec = self._lengths[number], self._spec
        if length not in self._feeds:
            as_long = replace(spec, train=replace(spec.train, sequence_length=length))
            self._feeds[length] = find_feed(self._model, as_long)
        return make(self._feeds[length], spec.train.micro_batch_size, own_loss=self._own_loss)


def _feed_by_names(model: nn.Module, given: dict[str, Input]) -> Feed:
    takes = forward_signature(model)
    labels = {name: spec for name, spec in given.items() if name in TARGETS and not takes.has(name)}
    arguments = {name: spec for name, spec in given.items() if name not in labels}
    unknown = [name for name in arguments if not takes.has(name)]
    if not unknown:
        return Feed(arguments=arguments, labels=labels)
    if takes.positional < len(arguments):
        raise SpecError(
            f"the model's forward does not take {', '.join(unknown)}",
            allowed=", ".join(takes.names) or "nothing",
            place="train.inputs",
        )
    return Feed(arguments=arguments, labels=labels, positional=True)


def _override(found: Feed, given: dict[str, Input], model: nn.Module) -> Feed:
    if not given:
        return found
    takes = forward_signature(model)
    for name in given:
        if name not in TARGETS and name not in takes.names:
            raise SpecError(
                f"{type(model).__name__} does not take the input {name!r}",
                allowed=", ".join(takes.names),
                place=f"train.inputs.{name}",
            )
    label_names = {*found.labels, *(found.own_labels or {}), *TARGETS}
    labels = {name: spec for name, spec in given.items() if name in label_names}
    arguments = {name: spec for name, spec in given.items() if name not in label_names}
    return replace(
        found,
        arguments={**found.arguments, **arguments},
        labels={**found.labels, **labels},
        own_labels=None if found.own_labels is None else {**found.own_labels, **labels},
    )


def _transformers_feed(model: nn.Module, spec: schema.Job) -> Feed:
    """The inputs of this model: text with an attention mask only under `train.padding`; videos frame by frame.

    Sizes not in the config: images are 224 pixels square, raw audio 160,000 samples. Raises SpecError for a model of
    tokens without `train.sequence_length`.
    """
    # Jobs of transformers' models alone pay for its import.
    from planner.training.models import transformers_models

    config: Any = model.config
    head = transformers_models.find_head(model)
    takes = forward_signature(model)
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


def _with_mask(feed: Feed, takes: ForwardSignature, spec: schema.Job) -> Feed:
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


def _text(config: Any, head: str, takes: ForwardSignature, spec: schema.Job) -> Feed:
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


def _audio(config: Any, head: str, main: str, takes: ForwardSignature, spec: schema.Job) -> Feed:
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


def _image_and_text(config: Any, takes: ForwardSignature, spec: schema.Job) -> Feed:
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


def make(feed: Feed, batch: int, *, own_loss: bool) -> dict[str, Tensor]:
    """A micro-batch as a data loader hands it over, on the host. `own_loss`: with the labels that the model's own loss
    takes."""
    wanted = feed.arguments if own_loss else {**feed.arguments, **feed.by_hand}
    arguments = {name: _host(name, spec, batch, padded=feed.padded) for name, spec in wanted.items()}
    if feed.image_tokens:
        ids = arguments["input_ids"]
        ids[ids == feed.image_token] = 0
        ids[:, : feed.image_tokens] = feed.image_token
    labels = _labels(feed, own_loss=own_loss)
    return {**arguments, **{name: _host(name, spec, batch) for name, spec in labels.items()}}


def move(tensors: Mapping[str, Tensor], feed: Feed, device: torch.device, *, own_loss: bool) -> MicroBatch:
    """The micro-batch that was made of this feed, copied to the device."""
    labels = _labels(feed, own_loss=own_loss)
    moved = {name: to_device(tensor, device, name) for name, tensor in tensors.items()}
    return MicroBatch(
        arguments={name: tensor for name, tensor in moved.items() if name not in labels},
        labels={name: moved[name] for name in labels},
    )


def _labels(feed: Feed, *, own_loss: bool) -> Mapping[str, Input]:
    return feed.own_labels if own_loss and feed.own_labels is not None else feed.labels


def to_device(tensor: Tensor, device: torch.device, name: str = "") -> Tensor:
    """The tensor on the device, as a data loader puts it there."""
    moved = tensor.to(device, non_blocking=True)
    if not name.endswith(_MASK) and hasattr(torch.ops.paper, "forget_value"):
        torch.ops.paper.forget_value(moved)  # of what is made up nothing follows, as no job has these values
    return moved


def _host(name: str, spec: Input, batch: int, *, padded: bool = False) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    shape = (batch, *spec.shape)
    if name.endswith(_MASK):
        mask = torch.ones(shape, dtype=dtype)
        if padded:
            mask[1:, -1] = 0  # the first sequence is the longest of its batch
        return mask
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_floating_point:
        # One random example for the whole batch: the values only have to be finite, and large batches take seconds.
        return torch.randn(spec.shape, dtype=torch.float32).to(dtype).expand(shape).contiguous()
    return torch.randint(0, max(1, spec.maximum), shape, dtype=dtype)
