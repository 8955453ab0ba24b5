"""Convolutions and recurrent networks: cuDNN's, as torch hands them over.

Source: torch 2.13, aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp, native/cudnn/RNN.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import conv2d, conv_transpose2d, ctc_loss


def image(*shape: int, dtype: torch.dtype = torch.float32, channels_last: bool = False) -> torch.Tensor:
    order = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device="cuda").to(memory_format=order)


def convolved(**arguments: Any) -> Any:
    def make() -> tuple[torch.Tensor, ...]:
        return image(4, 8, 32, 32, **arguments), image(16, 8, 3, 3, **arguments), torch.empty(16, device="cuda")

    return make


def test_a_convolution_allocates_its_result_only_and_names_its_workspace_as_unknown(taken: Any) -> None:
    found = taken(convolved(), lambda x, weight, bias: conv2d(x, weight, bias, padding=1))

    assert found.kept == [((4, 16, 32, 32), "float32")]
    assert found.temporary == []
    assert found.unknown_workspaces == ("cuDNN convolution, forward",)


def test_a_convolution_of_images_with_channels_last_brings_its_weight_into_that_order(taken: Any) -> None:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return image(4, 8, 32, 32, channels_last=True), image(16, 8, 3, 3)

    found = taken(make, lambda x, weight: conv2d(x, weight))

    assert found.kept == [((4, 16, 30, 30), "float32")]
    assert found.temporary == [((16, 8, 3, 3), "float32")]


def test_the_result_lies_as_the_images_do(taken: Any) -> None:
    results: list[torch.Tensor] = []
    taken(convolved(channels_last=True), lambda x, weight, _: results.append(conv2d(x, weight)))

    assert results[0].is_contiguous(memory_format=torch.channels_last)


def test_the_backward_allocates_a_gradient_of_input_weight_and_bias(taken: Any) -> None:
    def with_graph() -> tuple[torch.Tensor, ...]:
        leaves = [t.requires_grad_() for t in convolved()()]
        out = conv2d(*leaves, padding=1)
        return out, torch.empty_like(out), *leaves

    found = taken(with_graph, lambda out, grad, *_: out.backward(grad))

    assert sorted(found.kept) == sorted([((4, 8, 32, 32), "float32"), ((16, 8, 3, 3), "float32"), ((16,), "float32")])


def test_a_convolution_in_one_dimension_is_one_in_two(taken: Any) -> None:
    def make() -> tuple[nn.Module, torch.Tensor]:
        return nn.Conv1d(8, 16, 3, device="cuda"), torch.empty(4, 8, 100, device="cuda")

    found = taken(make, lambda module, x: module(x))

    assert found.kept == [((4, 16, 1, 98), "float32")]


def test_a_depthwise_convolution_in_float32_runs_without_cudnn(taken: Any) -> None:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return image(4, 8, 32, 32), image(8, 1, 5, 5)

    found = taken(make, lambda x, weight: conv2d(x, weight, groups=8))

    assert found.kept == [((4, 8, 28, 28), "float32")]
    assert found.unknown_workspaces == ()


def test_a_transposed_convolution_has_the_size_of_the_input_of_a_convolution(taken: Any) -> None:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return image(4, 8, 16, 16), image(8, 6, 4, 4)

    found = taken(make, lambda x, weight: conv_transpose2d(x, weight, stride=2, padding=1))

    assert found.kept == [((4, 6, 32, 32), "float32")]


def test_an_lstm_lays_its_weights_into_one_buffer(taken: Any) -> None:
    made: list[nn.LSTM] = []
    found = taken(tuple, lambda: made.append(nn.LSTM(8, 16, num_layers=2).to("cuda")))

    weights = [parameter.numel() for parameter in made[0].parameters()]
    assert found.kept == [((sum(weights),), "float32")]
    assert len(found.temporary) == len(weights)


def test_an_lstm_keeps_a_reserve_for_its_backward_and_says_that_it_is_not_known_exactly(taken: Any) -> None:
    def make() -> tuple[nn.Module, torch.Tensor]:
        return nn.LSTM(8, 16, num_layers=2, batch_first=True).to("cuda"), torch.empty(4, 10, 8, device="cuda")

    found = taken(make, lambda module, x: module(x))

    gates_and_state = 5
    assert (10 * 4 * 16 * 2 * gates_and_state * 4) in found.kept_bytes
    assert found.unknown_workspaces == ("cuDNN recurrent network, forward",)


def test_a_gru_trains(taken: Any) -> None:
    def with_graph() -> tuple[torch.Tensor, nn.Module]:
        module = nn.GRU(8, 16).to("cuda")
        out, _ = module(torch.empty(10, 4, 8, device="cuda"))
        return out.sum(), module

    found = taken(with_graph, lambda loss, _: loss.backward())

    assert ((3 * 16 * (8 + 16) + 2 * 3 * 16,), "float32") in found.kept


def test_ctc_keeps_alphas_as_wide_as_twice_the_longest_target_and_one(taken: Any) -> None:
    def make() -> tuple[torch.Tensor, ...]:
        scores = torch.empty(50, 4, 20, device="cuda", requires_grad=True)
        return scores, torch.ones(4, 12, dtype=torch.int64, device="cuda")

    found = taken(make, lambda scores, targets: ctc_loss(scores, targets, (50,) * 4, (12,) * 4, reduction="none"))

    assert ((4, 50, 2 * 12 + 1), "float32") in found.kept
