"""Normalization: one fused kernel each, statistics in float32, partial sums where rows are many.

Source: torch 2.13, aten/src/ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu, native/cudnn/BatchNorm.cpp.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from planner.upstream import torch_releases

ROWS, WIDTH = 128, 64


def rows(count: int = ROWS, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(count, width, dtype=dtype, device="cuda", requires_grad=True)


def module(kind: type[nn.Module], *sizes: int, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    return kind(*sizes).to("cuda", dtype)


@pytest.mark.skipif(not torch_releases.since(2, 8), reason="of several operators before torch 2.8")
def test_rms_norm_in_bf16_is_one_fused_kernel_with_a_float32_per_row(taken: Any) -> None:
    found = taken(lambda: (module(nn.RMSNorm, WIDTH), rows()), lambda norm, x: norm(x))

    assert found.kept == [((ROWS, WIDTH), "bfloat16"), ((ROWS,), "float32")]
    assert found.temporary == []


def test_layer_norm_keeps_two_float32_per_row(taken: Any) -> None:
    found = taken(lambda: (module(nn.LayerNorm, WIDTH), rows()), lambda norm, x: norm(x))

    assert found.kept == [((ROWS, WIDTH), "bfloat16"), ((ROWS,), "float32"), ((ROWS,), "float32")]


def gradients(norm: type[nn.Module], count: int, width: int, taken: Any) -> Any:
    def with_graph() -> tuple[Any, ...]:
        layer, x = module(norm, width), rows(count, width)
        out = layer(x)
        return out, torch.empty_like(out), layer, x

    return taken(with_graph, lambda out, grad, *_: out.backward(grad))


def test_the_backward_of_layer_norm_takes_nothing_besides_its_gradients(taken: Any) -> None:
    found = gradients(nn.LayerNorm, ROWS, WIDTH, taken)

    assert found.kept == [((ROWS, WIDTH), "bfloat16"), ((WIDTH,), "bfloat16"), ((WIDTH,), "bfloat16")]
    assert found.temporary == []


def test_more_than_65536_short_rows_are_summed_in_blocks_of_32_first(taken: Any) -> None:
    many = 65536 + 32
    found = gradients(nn.LayerNorm, many, WIDTH, taken)

    block_sums = ((many // 32, WIDTH), "bfloat16")
    assert [part for part in found.temporary if part == block_sums] == [block_sums, block_sums]


@pytest.mark.skipif(not torch_releases.since(2, 8), reason="of several operators before torch 2.8")
def test_rows_that_are_long_enough_are_summed_at_once(taken: Any) -> None:
    found = gradients(nn.RMSNorm, 65536 + 32, 4096, taken)

    assert found.temporary == []


def test_group_norm_scales_and_shifts_by_two_float32_per_sample_and_channel(taken: Any) -> None:
    def make() -> tuple[Any, ...]:
        return module(nn.GroupNorm, 4, 32), torch.empty(2, 32, 8, 8, dtype=torch.bfloat16, device="cuda")

    found = taken(make, lambda norm, x: norm(x))

    assert found.kept == [((2, 32, 8, 8), "bfloat16"), ((2, 4), "bfloat16"), ((2, 4), "bfloat16")]
    assert found.temporary == [((2, 32), "float32"), ((2, 32), "float32")]


def test_batch_norm_of_images_is_cudnns_and_keeps_two_float32_per_channel(taken: Any) -> None:
    def make() -> tuple[Any, ...]:
        return module(nn.BatchNorm2d, 16, dtype=torch.float32), torch.empty(4, 16, 8, 8, device="cuda")

    found = taken(make, lambda norm, x: norm(x))

    assert found.kept == [((4, 16, 8, 8), "float32"), ((16,), "float32"), ((16,), "float32")]
    assert (found.temporary, found.unknown_workspaces) == ([], ())


def test_the_workspace_of_batch_norm_with_channels_last_is_unknown(taken: Any) -> None:
    def make() -> tuple[Any, ...]:
        x = torch.empty(4, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
        return module(nn.BatchNorm2d, 16, dtype=torch.float32), x

    found = taken(make, lambda norm, x: norm(x))

    assert found.unknown_workspaces == ("cuDNN batch normalization, forward",)


def test_batch_norm_of_rows_is_torchs_own(taken: Any) -> None:
    def make() -> tuple[Any, ...]:
        return module(nn.BatchNorm1d, WIDTH, dtype=torch.float32), rows(dtype=torch.float32)

    found = taken(make, lambda norm, x: norm(x))

    assert found.kept == [((ROWS, WIDTH), "float32"), ((WIDTH,), "float32"), ((WIDTH,), "float32")]
    assert found.unknown_workspaces == ()


def test_dropout_keeps_a_bool_mask(taken: Any) -> None:
    found = taken(lambda: (rows(),), lambda x: nn.functional.dropout(x, 0.1))

    assert sorted(found.kept) == [((ROWS, WIDTH), "bfloat16"), ((ROWS, WIDTH), "bool")]
