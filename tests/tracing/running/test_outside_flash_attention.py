"""flash-attn's functions ask for what theirs ask for, forward and backward.

Sources: flash-attn 2.8.4, csrc/flash_attn/flash_api.cpp; flash-attn 3, hopper/flash_api.cpp. Shapes are worked out by
hand from these files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from told_events import told_events

import planner.paper  # noqa: F401
from planner.errors import TraceError
from planner.paper.outside import flash_attention_2, flash_attention_3

DTYPE = torch.bfloat16


def tensor(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda", requires_grad=dtype.is_floating_point)


def trained(call: Callable[[], Any]) -> Callable[[], Any]:
    """The result, and gradients from a gradient that was there before."""

    def run() -> Any:
        result = call()
        result.backward(torch.empty_like(result))
        return result

    return run


def after(lines: list[str], first: str) -> list[str]:
    return lines[next(number for number, line in enumerate(lines) if line.startswith(f"+ {first}")) :]


def test_grouped_heads() -> None:
    def attend() -> Any:
        q, k, v = tensor(2, 100, 8, 64), tensor(2, 100, 2, 64), tensor(2, 100, 2, 64)
        return flash_attention_2.flash_attn_func(q, k, v, causal=True)

    assert after(told_events(trained(attend)), "_flash_attn_forward") == [
        "+ _flash_attn_forward 2x100x8x64 bfloat16",
        "+ _flash_attn_forward 2x8x100 float32",  # log-sum-exp
        "+ _flash_attn_forward 2 int64",  # seed and offset
        "+ empty_like 2x100x8x64 bfloat16",
        "+ empty_like 2x100x8x64 bfloat16",
        "+ empty_like 2x100x2x64 bfloat16",
        "+ empty_like 2x100x2x64 bfloat16",
        "+ _flash_attn_backward 2x8x128 float32",  # row sums
        "+ _flash_attn_backward 2x128x8x64 float32",  # the query's gradient
        "+ _flash_attn_backward 2x100x8x64 bfloat16",  # of every head's key
        "+ _flash_attn_backward 2x100x8x64 bfloat16",
        "- _flash_attn_backward 2x100x8x64",
        "- _flash_attn_backward 2x100x8x64",
        "- _flash_attn_backward 2x128x8x64",
        "- _flash_attn_backward 2x8x128",
        "- _flash_attn_forward 2",
        "- _flash_attn_forward 2x8x100",
        "- empty_like 2x100x8x64",
    ]


def test_packed_heads_that_are_padded_to_a_multiple_of_eight() -> None:
    def attend() -> Any:
        return flash_attention_2.flash_attn_qkvpacked_func(tensor(2, 100, 3, 4, 60))

    assert after(told_events(trained(attend)), "_flash_attn_forward") == [
        "+ _flash_attn_forward 2x100x4x64 bfloat16",
        "+ _flash_attn_forward 2x4x100 float32",
        "+ _flash_attn_forward 2 int64",
        "+ empty_like 2x100x4x60 bfloat16",
        "+ new_empty 2x100x3x4x64 bfloat16",  # all three gradients
        "+ constant_pad_nd 2x100x4x64 bfloat16",  # the gradient, padded
        "+ _flash_attn_backward 2x4x128 float32",
        "+ _flash_attn_backward 2x128x4x64 float32",
        *["- _flash_attn_backward 2x128x4x64", "- _flash_attn_backward 2x4x128", "- _flash_attn_forward 2"],
        *["- _flash_attn_forward 2x4x100", *["- constant_pad_nd 2x100x4x64"] * 4],
        "+ new_empty_strided 2x100x3x4x60 bfloat16",  # the leaf's own
        "- empty_like 2x100x4x60",
        "- new_empty 2x100x3x4x64",
    ]


def test_sequences_of_different_lengths() -> None:
    def attend() -> Any:
        begins = torch.tensor([0, 30, 80], dtype=torch.int32).cuda()
        q, kv = tensor(80, 4, 96), tensor(80, 2, 4, 96)
        return flash_attention_2.flash_attn_varlen_kvpacked_func(q, kv, begins, begins, 50, 50, dropout_p=0.1)

    assert after(told_events(trained(attend)), "_flash_attn_varlen_forward") == [
        "+ _flash_attn_varlen_forward 80x4x96 bfloat16",
        "+ _flash_attn_varlen_forward 4x80 float32",
        "+ _flash_attn_varlen_forward 2 int64",
        "+ empty_like 80x4x96 bfloat16",
        "+ empty_like 80x4x96 bfloat16",
        "+ new_empty 80x2x4x96 bfloat16",
        "+ _flash_attn_varlen_backward 4x336 float32",  # 128 rows more for each of two sequences
        "+ _flash_attn_varlen_backward 336x4x96 float32",
        "- _flash_attn_varlen_backward 336x4x96",
        "- _flash_attn_varlen_backward 4x336",
        "- _flash_attn_varlen_forward 2",
        "- _flash_attn_varlen_forward 4x80",
        "- _to_copy 3",
        "- empty_like 80x4x96",
    ]


def test_probabilities_are_made_if_they_are_asked_for() -> None:
    def attend() -> Any:
        q, k, v = (tensor(1, 10, 2, 160) for _ in range(3))
        with torch.no_grad():
            return flash_attention_2.flash_attn_func(q, k, v, dropout_p=0.5, return_attn_probs=True)

    assert after(told_events(attend), "_flash_attn_forward") == [
        "+ _flash_attn_forward 1x10x2x160 bfloat16",
        "+ _flash_attn_forward 1x2x10 float32",
        "+ _flash_attn_forward 1x2x128x128 bfloat16",
        "+ _flash_attn_forward 2 int64",
        *["- _flash_attn_forward 2", *["- empty 1x10x2x160"] * 3],
    ]


def test_deterministic_gradients_are_added_up_in_parts() -> None:
    def attend() -> Any:
        q, k, v = (tensor(2, 64, 8, 64) for _ in range(3))
        return flash_attention_2.flash_attn_func(q, k, v, deterministic=True)

    assert "+ _flash_attn_backward 9x2x128x8x64 float32" in told_events(trained(attend))  # 132 / 16 multiprocessors


def test_flash_attention_3_with_grouped_heads() -> None:
    def attend() -> Any:
        q, k, v = tensor(2, 100, 8, 128), tensor(2, 100, 2, 128), tensor(2, 100, 2, 128)
        return flash_attention_3.flash_attn_func(q, k, v, causal=True)

    assert after(told_events(trained(attend)), "forward") == [
        "+ forward 2x100x8x128 bfloat16",
        "+ forward 2x8x100 float32",
        "+ forward 9 int32",  # two vectors of four, and the counter
        "- forward 9",
        "+ empty_like 2x100x8x128 bfloat16",
        "+ empty_like 2x100x8x128 bfloat16",
        "+ empty_like 2x100x2x128 bfloat16",
        "+ empty_like 2x100x2x128 bfloat16",
        "+ backward 2x8x128 float32",  # rows in tiles of 64
        "+ backward 2x8x128 float32",
        "+ backward 2x8x128x128 float32",
        "+ backward 2x2x128x128 float32",
        "+ backward 2x2x128x128 float32",
        "+ backward 2x2x8 int32",
        *["- backward 2x2x128x128"] * 2,
        *["- backward 2x2x8", "- backward 2x8x128", "- backward 2x8x128", "- backward 2x8x128x128"],
        "- empty_like 2x100x8x128",
        "- forward 2x8x100",
    ]


def test_flash_attention_3_with_lengths_and_a_window_on_an_older_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (8, 0))

    def attend() -> Any:
        begins = torch.tensor([0, 30, 80], dtype=torch.int32).cuda()
        q, k, v = (tensor(80, 4, 64) for _ in range(3))
        return flash_attention_3.flash_attn_varlen_func(q, k, v, begins, begins, 50, 50, window_size=(8, 0))

    lines = after(told_events(trained(attend)), "forward")

    assert [line for line in lines if line.startswith(("+ forward", "+ backward"))] == [
        "+ forward 80x4x64 bfloat16",
        "+ forward 4x80 float32",
        "+ forward 12 int32",  # lengths, tiles and heads of each sequence; unsorted, as there is a window
        "+ backward 4x384 float32",
        "+ backward 4x384 float32",
        "+ backward 4x384x64 float32",
        "+ backward 1x2x4 int32",
    ]


def test_a_number_of_splits_that_the_library_would_choose_is_refused() -> None:
    with pytest.raises(TraceError, match="num_splits=0 leaves the number to a rule of the library"):
        told_events(lambda: flash_attention_3.flash_attn_func(*(tensor(1, 8, 2, 64) for _ in range(3)), num_splits=0))


def test_padding_goes_and_comes_back() -> None:
    def pad() -> Any:
        states, mask = tensor(2, 5, 3), torch.tensor([[1] * 5, [1] * 3 + [0] * 2]).cuda()
        indices = torch.nonzero(torch.ones(8)).flatten().cuda()
        rows = flash_attention_2.index_first_axis(states.flatten(0, 1), indices)
        del mask
        return flash_attention_2.pad_input(rows, indices, 2, 5)

    lines = told_events(trained(pad))

    assert "+ gather 8x3 bfloat16" in lines
    assert lines.count("+ zeros 10x3 bfloat16") + lines.count("+ empty 10x3 bfloat16") == 2


def test_rotary_embedding_of_half_a_head() -> None:
    def turn() -> Any:
        cos = torch.empty(10, 8, dtype=DTYPE, device="cuda")
        return flash_attention_2.apply_rotary_emb(tensor(2, 10, 4, 32), cos, cos)

    lines = after(told_events(trained(turn)), "apply_rotary")

    assert [line for line in lines if "apply_rotary" in line] == ["+ apply_rotary 2x10x4x32 bfloat16"] * 2


def test_cross_entropy_keeps_a_figure_a_row_and_can_write_over_its_logits() -> None:
    def lose(inplace: bool) -> list[str]:
        def loss() -> Any:
            scores = tensor(6, 1000) * 1.0
            module = flash_attention_2.CrossEntropyLoss(inplace_backward=inplace)
            return module(scores, torch.zeros(6, dtype=torch.int64, device="cuda"))

        return [line for line in told_events(trained(loss)) if line.startswith("+ cross_entropy")]

    forward = ["+ cross_entropy_fwd 6 float32"] * 3
    assert lose(False) == [*forward, "+ cross_entropy_bwd 6x1000 bfloat16"]
    assert lose(True) == forward
