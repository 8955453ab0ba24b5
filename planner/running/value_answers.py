"""Answers a program that reads values of device tensors, which on paper have none, and lists every answer.

First by what made the tensor (a comparison with itself looks for NaN, an `all` holds), then a loss that has learnt
nothing, then by dtype. Every answer is a guess at a healthy run: `--strict` refuses them instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from planner.paper.recorder import Recorder
from planner.paper.values import Value
from planner.running.assumptions import About, Assumptions, place_of
from planner.running.branches import Branch, branch_at


@dataclass(frozen=True, slots=True)
class Made:
    """What a value is taken for that an operator has made."""

    operators: tuple[str, ...]
    answer: Value
    why: str


_BY_OPERATOR = (
    Made(("aten.all", "aten.isfinite"), True, "a check of everything holds"),
    Made(("aten.mul", "aten.logical_not", "aten.bitwise_not"), True, "a value is finite"),
    Made(("aten.any", "aten.isnan", "aten.isinf", "aten.ne"), False, "no value is out of order"),
    Made(("aten.argmax", "aten.argmin", "aten.argsort", "aten.topk", "aten.sort", "aten.max", "aten.min",
          "aten.multinomial"), 0, "the first index"),
)  # fmt: skip
"""For truth values and whole numbers. `isfinite` ends in a product of truth values (torch 2.13, aten/src/ATen/native/
TensorCompare.cpp)."""

_NOWHERE = ("aten.any", "aten.isnan", "aten.isinf")
"""Operators whose truth values hold nowhere in a healthy run: nothing is selected by them."""


class AnswersByTable:
    """The reader of a program (planner.paper.values.Reader). With `strict` nothing is answered that is not known."""

    def __init__(self, recorder: Recorder, assumptions: Assumptions, *, strict: bool, otherwise: str = "") -> None:
        """`otherwise`: a line at which a truth value is answered the other way."""
        self._recorder, self._assumptions, self._strict = recorder, assumptions, strict
        self._otherwise = otherwise
        self.branches: dict[str, Branch] = {}
        """Lines at which an answer decides."""
        self.classes = 0
        """Of the last loss over classes; 0 before the first."""
        self.reads = 0
        """How often the host has read from the device, and waited for it."""

    def note(self, tensor: torch.Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        """A known call site of a library was answered."""
        self._list(tensor, frames, answer, why)

    def answer(self, tensor: torch.Tensor, frames: Sequence[FrameType]) -> Value | None:
        """The value and, in the list, the reason for it; None under `strict`."""
        if self._strict:
            return None
        answer, why = self._judge(tensor)
        if (branch := branch_at(frames, answer)) is not None:
            self.branches.setdefault(branch.place, branch)
            if branch.place == self._otherwise:
                answer, why = not answer, "the other way is tried"
        self._list(tensor, frames, answer, why)
        return answer

    def copy(self, tensor: torch.Tensor, frames: Sequence[FrameType], mover: str) -> bool:
        """Zeros, in the list: what a library moves, as such; what else is copied is read. Under `strict` the latter is
        refused."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        if mover:
            self._assumptions.add(About.HOST, f"tensors of {dtype} that {mover} moves to the host are zeros there")
        elif not self._strict:
            self._assumptions.add(
                About.VALUE, f"values of {dtype} that are copied to the host read as 0", place_of(frames)
            )
        return bool(mover) or not self._strict

    def count(self, tensor: torch.Tensor, frames: Sequence[FrameType], most: int, what: str, why: str) -> int | None:
        """As many as there can be, but none where values out of order are looked for; None under `strict`."""
        if self._strict:
            return None
        made_by = self._recorder.operator_of(tensor) if tensor.dtype is torch.bool else ""
        count, why = (0, f"{made_by}: no value is out of order") if made_by in _NOWHERE else (most, why)
        self._assumptions.add(About.VALUE, f"{count:,} {what} ({why})", place_of(frames))
        return count

    def _judge(self, tensor: torch.Tensor) -> tuple[Value, str]:
        if tensor.is_floating_point() or tensor.is_complex():
            if self.classes > 1:
                return math.log(
                    self.classes
                ), f"the loss over {self.classes:,} classes of a model that has learnt nothing"
            return 1.0, "any finite number"
        made_by = self._recorder.operator_of(tensor)
        is_truth = tensor.dtype is torch.bool
        for each in _BY_OPERATOR:
            if made_by in each.operators and isinstance(each.answer, bool) == is_truth:
                return each.answer, f"{made_by}: {each.why}"
        return (False, "nothing is out of order") if is_truth else (1, "any count")

    def _list(self, tensor: torch.Tensor, frames: Sequence[FrameType], answer: Value, why: str) -> None:
        self.reads += 1
        shown = f"{answer:.4g}" if isinstance(answer, float) else str(answer)
        many = "a value" if tensor.numel() == 1 else f"{tensor.numel()} values"
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._assumptions.add(About.VALUE, f"{many} of {dtype} read as {shown} ({why})", place_of(frames))

    def watching_losses(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A loss over classes that remembers how many there are, for `upstream.patch_targets`."""

        def loss(*arguments: Any, **options: Any) -> Any:
            scores = arguments[0] if arguments else options.get("input")
            if isinstance(scores, torch.Tensor) and scores.is_cuda and scores.dim():
                self.classes = scores.shape[1] if scores.dim() > 1 else scores.shape[0]
            return real(*arguments, **options)

        return loss
