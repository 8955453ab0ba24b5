"""Makes the input tensors of one micro-batch on the host and copies them to the device.

Sizes come from the model's own config; whatever `train.inputs` says wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from planner.errors import SpecError
from planner.events import Category
from planner.job import schema
from planner.job.sampled_runs import draw_steps
from planner.training import batch_shapes
from planner.training.batch_shapes import Feed, any_dtype
from planner.training.observers import Observer

TARGETS = ("labels", "target", "targets")
"""Names in `train.inputs` that the loss gets when the model's forward does not take them."""


@dataclass(slots=True)
class MicroBatch:
    """One micro-batch on the device."""

    arguments: dict[str, Tensor]
    labels: dict[str, Tensor]

    @property
    def target(self) -> Tensor | None:
        return next(iter(self.labels.values()), None)

    def tensors(self) -> list[Tensor]:
        """All that the data loader gave."""
        return [*self.arguments.values(), *self.labels.values()]


def feed_of(model: nn.Module, spec: schema.Job) -> Feed:
    """What this model takes. Raises SpecError if neither the model nor the job says so."""
    given = dict(spec.train.inputs)
    if hasattr(model, "config") and hasattr(model, "main_input_name") and spec.model.hf_config is not None:
        # Jobs of transformers' models alone pay for its import.
        from planner.training import transformers_inputs

        return _override(transformers_inputs.feed_of(model, spec), given, model)
    length = spec.train.sequence_length
    if not given and length:
        vocab = getattr(model, "vocab", 2)
        tokens = schema.Input(shape=(length,), dtype="int64", maximum=vocab)
        given = {"input_ids": tokens, "labels": tokens}
    if not given:
        raise SpecError(
            "nothing says what the model takes",
            allowed="train.inputs: {NAME: {shape: [3, 224, 224], dtype: float32}}, or train.sequence_length for tokens",
            place="train.inputs",
        )
    return _of_names(model, given)


def feeds_by_length(model: nn.Module, spec: schema.Job) -> Mapping[int, Feed]:
    """What this model takes in a batch of each length that the job's run has; nothing where all are of one length."""
    if spec.train.lengths is None:
        return {}
    every = {length for step in draw_steps(spec.train) for length in step}
    return {
        length: feed_of(model, replace(spec, train=replace(spec.train, sequence_length=length))) for length in every
    }


def make(feed: Feed, batch: int, device: torch.device, observer: Observer, *, own_loss: bool) -> MicroBatch:
    """A micro-batch as a data loader hands it over: made on the host, then copied to the device.

    `own_loss`: with the labels that the model's own loss takes.
    """
    labels = feed.own_labels if own_loss and feed.own_labels is not None else feed.labels
    wanted = feed.arguments if own_loss else {**feed.arguments, **feed.by_hand}
    arguments = {name: _host(name, spec, batch, padded=feed.padded) for name, spec in wanted.items()}
    if feed.image_tokens:
        ids = arguments["input_ids"]
        ids[ids == feed.image_token] = 0
        ids[:, : feed.image_tokens] = feed.image_token
    return MicroBatch(
        arguments={name: to_device(tensor, device, observer, name) for name, tensor in arguments.items()},
        labels={name: to_device(_host(name, spec, batch), device, observer, name) for name, spec in labels.items()},
    )


def prompts(feed: Feed, batch: int, tokens: int, device: torch.device, observer: Observer) -> Tensor:
    """So many prompts of so many tokens on the device."""
    name, spec = next(iter(feed.arguments.items()))
    made = torch.randint(0, max(1, spec.maximum), (batch, tokens), dtype=any_dtype(spec.dtype, place="train.inputs"))
    return to_device(made, device, observer, name)


def to_device(tensor: Tensor, device: torch.device, observer: Observer, name: str) -> Tensor:
    """The tensor on the device, told as an input."""
    moved = tensor.to(device, non_blocking=True)
    observer.assign(moved, Category.INPUT, name)
    return moved


def _host(name: str, spec: schema.Input, batch: int, *, padded: bool = False) -> Tensor:
    dtype = any_dtype(spec.dtype, place=f"train.inputs.{name}.dtype")
    shape = (batch, *spec.shape)
    if name.endswith("attention_mask"):
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


def _of_names(model: nn.Module, given: dict[str, schema.Input]) -> Feed:
    takes = batch_shapes.of_forward(model)
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


def _override(found: Feed, given: dict[str, schema.Input], model: nn.Module) -> Feed:
    if not given:
        return found
    takes = batch_shapes.of_forward(model)
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
