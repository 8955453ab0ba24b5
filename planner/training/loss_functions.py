"""Computes the loss: the scalar from a model's output that the backward starts from, at once or in chunks of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from planner.errors import SpecError
from planner.job import schema
from planner.training import blocks, inputs
from planner.training.inputs import Feed, MicroBatch


class Objective:
    """Calls the model and computes the loss; nothing but the loss outlives the call."""

    def __init__(
        self,
        spec: schema.Loss,
        feed: Feed,
        device: torch.device,
        compiled: schema.Compile | None = None,
    ) -> None:
        self.own = spec.name == "model" or (feed.own_loss and spec.name != "sum")
        self._name, self._chunks = spec.name, spec.chunks
        self._dtype = getattr(torch, spec.dtype)
        self._feed, self._device = feed, device
        self._cross_entropy = blocks.compile_loss(cross_entropy, compiled)

    def __call__(self, model: nn.Module, batch: MicroBatch) -> Tensor:
        output = self._call(model, batch)
        if self.own:
            return _own_loss(output)
        return self.compute_from_output(find_logits(output), batch.target)

    def compute_from_output(self, logits: Tensor, target: Tensor | None) -> Tensor:
        """The loss by hand of an output that somebody else computed."""
        if self._name == "sum":
            return logits.to(self._dtype).sum()
        if self._name == "mse":
            return self._squares(logits, target)
        target = target if target is not None else self._make_classes(logits)
        return self._cross_entropy(logits, target, self._dtype, self._chunks)

    def _call(self, model: nn.Module, batch: MicroBatch) -> Any:
        if self._feed.positional:
            return model(*batch.arguments.values(), **self._feed.constants)
        labels = batch.labels if self.own else {}
        return model(**batch.arguments, **labels, **self._feed.constants)

    def _squares(self, prediction: Tensor, target: Tensor | None) -> Tensor:
        if target is None:
            target = inputs.to_device(torch.zeros(prediction.shape), self._device)
        return functional.mse_loss(prediction.to(self._dtype), target.to(self._dtype))

    def _make_classes(self, logits: Tensor) -> Tensor:
        """Targets for logits of a shape found only now: classes in dim 1 of images, else in the last dim."""
        dim = 1 if logits.dim() >= 4 else logits.dim() - 1
        shape = (*logits.shape[:dim], *logits.shape[dim + 1 :])
        return inputs.to_device(torch.randint(0, logits.shape[dim], shape), self._device)


def cross_entropy(logits: Tensor, target: Tensor, dtype: torch.dtype, chunks: int = 1) -> Tensor:
    """Mean cross entropy in `dtype`; with `chunks` > 1 the tokens are taken chunk by chunk, as torchtune does.

    Logits are (batch, classes), (batch, tokens, classes) or, for images, (batch, classes, height, width). Chunks bound
    how much of the logits exists in `dtype` at once.
    """
    if logits.dim() >= 4:
        return functional.cross_entropy(_resized(logits, target).to(dtype), target)
    if logits.dim() == 3:
        logits, target = logits.flatten(0, 1), target.flatten()
    if chunks == 1:
        return functional.cross_entropy(logits.to(dtype), target)
    parts = zip(logits.chunk(chunks), target.chunk(chunks), strict=True)
    total = sum(functional.cross_entropy(part.to(dtype), classes, reduction="sum") for part, classes in parts)
    assert isinstance(total, Tensor)
    return total / target.numel()


def _resized(logits: Tensor, target: Tensor) -> Tensor:
    if logits.shape[2:] == target.shape[1:]:
        return logits
    return functional.interpolate(logits, size=target.shape[1:], mode="bilinear", align_corners=False)


def find_logits(output: Any) -> Tensor:
    """The tensor that a loss by hand starts from: `logits` where the output has them, else its first float tensor."""
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    tensor = _first_float(output)
    if tensor is None:
        raise SpecError(
            f"the model returns a {type(output).__name__} without a floating-point tensor",
            allowed="a tensor, or a tuple, dict or dataclass of tensors",
            place="model",
        )
    return tensor


def _own_loss(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, Tensor) and output.dim() == 0:
        loss = output
    if not isinstance(loss, Tensor):
        raise SpecError(
            f"the model returned no loss ({type(output).__name__})",
            allowed="cross_entropy, mse, sum for models that return none",
            place="train.loss.name",
        )
    return loss


def _first_float(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, Mapping):
        values: Sequence[Any] = list(output.values())
    elif isinstance(output, list | tuple):
        values = output
    else:
        values = list(getattr(output, "__dict__", {}).values())
    return next((tensor for value in values if (tensor := _first_float(value)) is not None), None)
