"""Softmax beside its result. Source: torch 2.13, aten/src/ATen/native/cuda/SoftMax.cu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import planner.paper as paper
from planner.events import Alloc

aten = torch.ops.aten


def tensors(*shape: int, transposed: bool = False) -> Callable[[], list[torch.Tensor]]:
    def make() -> list[torch.Tensor]:
        made = [torch.empty(shape, device="cuda") for _ in range(2)]
        return [each.mT for each in made] if transposed else made

    return make


def test_its_backward_multiplies_gradient_and_result_first(taken: Any) -> None:
    found = taken(tensors(2, 8, 16), lambda grad, out: aten._softmax_backward_data(grad, out, -1, torch.float32))

    assert (found.kept, found.temporary) == ([((2, 8, 16), "float32")], [((2, 8, 16), "float32")])


@pytest.mark.parametrize(
    ("run", "copies"),
    [
        (lambda x, _: x.softmax(-1), 1),
        (lambda x, _: x.log_softmax(-1), 1),
        (lambda grad, out: aten._log_softmax_backward_data(grad, out, -1, torch.float32), 2),
        (lambda grad, out: aten._softmax_backward_data(grad, out, -1, torch.float32), 3),
    ],
    ids=["softmax", "log_softmax", "backward_of_log_softmax", "backward_of_softmax"],
)
def test_what_does_not_lie_row_by_row_is_copied(run: Callable[..., Any], copies: int, taken: Any) -> None:
    """In the backward of `softmax` beside the product, which lies as its factors do."""
    assert taken(tensors(2, 8, 16), run).temporary == [((2, 8, 16), "float32")] * (copies // 3)
    assert taken(tensors(2, 8, 16, transposed=True), run).temporary == [((2, 16, 8), "float32")] * copies


def test_attention_that_is_not_fused_has_one_more_matrix_in_its_backward() -> None:
    def allocated(target: str) -> list[Sequence[int] | None]:
        with paper.gpu(target) as gpu:
            scores = torch.empty(4, 32, 32, device="cuda", requires_grad=True)
            weights = scores.softmax(-1)
            before = len(gpu.recorder.events())
            torch.autograd.grad(weights, scores, torch.empty_like(weights))
            return [
                event.origin and event.origin.shape
                for event in gpu.recorder.events()[before:]
                if isinstance(event, Alloc)
            ]

    assert allocated("sm_90") == [(4, 32, 32)] * 3  # the gradient that is given, the product, the result
    assert allocated("cpu") == [(4, 32, 32)] * 2
