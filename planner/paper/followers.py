"""What is known of results of operators that torch's own CUDA code has run, where no rule for all of them says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from planner.paper import random_numbers, values
from planner.paper.values import known_value

Tensors = Sequence[Tensor]
Numbers = Sequence[float | int | bool]


def follow(operator: str, tensors: Tensors, results: Tensors, numbers: Numbers) -> None:
    """The operator has made these results of these tensors and numbers."""
    _FOLLOWERS[operator](tensors, results, numbers)


def _follow_index(x: Tensor, places: Sequence[Tensor | None], result: Tensor) -> None:
    """What is known of whole numbers that are picked."""
    if torch.ops.paper.follows_values() and not result.is_floating_point():
        if (found := known_value(x)) is not None:
            _follow_places(result, found, places)
        elif (everywhere := torch.ops.paper.presumed(x)) is not None:
            torch.ops.paper.presume(result, everywhere)


def _follow_places(result: Tensor, x: Tensor, places: Sequence[Tensor | None]) -> None:
    """Of whole numbers that are known, those at known places are known."""
    found = [None if place is None else known_value(place) for place in places]
    if all(given is None or place is not None for place, given in zip(found, places, strict=True)):
        torch.ops.paper.remember_value(result, torch.ops.aten.index.Tensor(x, found))


def _follow_topk(x: Tensor, indices: Tensor, k: int, dim: int, largest: bool) -> None:
    """Of numbers that were drawn, the places are known."""
    if (places := random_numbers.find_largest(x, k, dim, largest)) is not None:
        torch.ops.paper.remember_value(indices, places)


def _follow_multinomial(x: Tensor, drawn: Tensor) -> None:
    """One draw may be any place."""
    if drawn.size(-1) == 1 and torch.ops.paper.follows_values():
        torch.ops.paper.presume(drawn, x.size(-1) // 2, True)


def _follow_histc(x: Tensor, counts: Tensor, min: float, max: float) -> None:
    """Of whole numbers, those of every bin."""
    if torch.ops.paper.follows_values() and not x.is_floating_point():
        bins = counts.numel()
        if (known := known_value(x)) is not None:
            torch.ops.paper.remember_value(counts, torch.histc(known.double(), bins, min, max).to(x.dtype))
        elif min < max and values.may_assume("bins of whole numbers that nobody has get as many as each other"):
            torch.ops.paper.remember_value(counts, values.equal_shares(x.numel(), bins).to(x.dtype))


_FOLLOWERS: dict[str, Callable[[Tensors, Tensors, Numbers], None]] = {
    # by operator: its tensors, its results, its numbers
    "aten::topk": lambda given, made, numbers: _follow_topk(
        given[0], made[1], int(numbers[0]), int(numbers[1]), bool(numbers[2])
    ),
    "aten::multinomial": lambda given, made, _: _follow_multinomial(given[0], made[0]),
    "aten::histc": lambda given, made, numbers: _follow_histc(given[0], made[0], *numbers[1:3]),
    "aten::index": lambda given, made, _: _follow_index(given[0], given[1:], made[0]),
}
"""Those that are followed `ByPython` (native/followed_operators.cpp)."""
