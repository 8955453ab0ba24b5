"""What is known of results of operators that torch's own CUDA code has run, where no rule for all of them says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from planner.paper.kernels import indexing, sorting

Tensors = Sequence[Tensor]
Numbers = Sequence[float | int | bool]
_FOLLOWERS: dict[str, Callable[[Tensors, Tensors, Numbers], None]] = {
    # by operator: its tensors, its results, its numbers
    "aten::topk": lambda given, made, numbers: sorting.follow_topk(
        given[0], made[1], int(numbers[0]), int(numbers[1]), bool(numbers[2])
    ),
    "aten::multinomial": lambda given, made, _: sorting.follow_multinomial(given[0], made[0]),
    "aten::histc": lambda given, made, numbers: sorting.follow_histc(given[0], made[0], *numbers[1:3]),
    "aten::index": lambda given, made, _: indexing.follow_index(given[0], given[1:], made[0]),
}
"""Those of `is_followed_by_python` in native/followed_operators.cpp."""


def follow(operator: str, tensors: Tensors, results: Tensors, numbers: Numbers) -> None:
    """The operator has made these results of these tensors and numbers."""
    _FOLLOWERS[operator](tensors, results, numbers)
