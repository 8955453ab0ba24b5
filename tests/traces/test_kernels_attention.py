"""Which attention kernel CUDA takes, and what each of them keeps and takes.

Source of all figures: torch 2.13, aten/src/ATen/native/transformers/cuda/.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import planner.paper as paper
from planner.upstream import torch_releases

BATCH, HEADS, ROWS = 2, 8, 256
MATH, FLASH, MEMORY_EFFICIENT, CUDNN = "math", "flash_attention", "efficient_attention", "cudnn_attention"

needs_cudnn = pytest.mark.skipif(
    not torch_releases.since(*torch_releases.CUDNN_ATTENTION),
    reason="before torch 2.9 no GPU prefers cuDNN's attention",
)


def chosen(
    target: str,
    dtype: torch.dtype = torch.bfloat16,
    *,
    head_dim: int = 64,
    heads: int = HEADS,
    kv_heads: int = HEADS,
    rows: int = ROWS,
    columns: int = ROWS,
    mask: bool = False,
    training: bool = True,
    cuda: str = "13.0",
    **arguments: Any,
) -> str:
    with paper.gpu(target, cuda=cuda):
        query = torch.empty(BATCH, heads, rows, head_dim, dtype=dtype, device="cuda", requires_grad=training)
        key = torch.empty(BATCH, kv_heads, columns, head_dim, dtype=dtype, device="cuda", requires_grad=training)
        bias = torch.empty(rows, columns, dtype=dtype, device="cuda") if mask else None
        backend = torch._fused_sdp_choice(query, key, key, bias, **arguments)
    return next(name.lower() for name, value in SDPBackend.__members__.items() if int(value) == backend)


@pytest.mark.parametrize(
    ("target", "backend"),
    [
        ("sm_70", MATH),
        ("sm_75", MATH),
        ("sm_80", FLASH),
        ("sm_86", FLASH),
        ("sm_89", FLASH),
        pytest.param("sm_90", CUDNN, marks=needs_cudnn),
        pytest.param("sm_100", CUDNN, marks=needs_cudnn),
        ("sm_120", FLASH),
    ],
)
def test_causal_attention_in_bf16_takes_the_kernel_of_its_architecture(target: str, backend: str) -> None:
    assert chosen(target, is_causal=True) == backend


def test_builds_for_cuda_12_come_with_a_cudnn_that_is_not_preferred() -> None:
    assert chosen("sm_90", cuda="12.8") == (CUDNN if torch_releases.installed() == (2, 9) else FLASH)


def test_on_amd_there_is_no_cudnn() -> None:
    assert chosen("gfx942") == FLASH


def test_in_fp16_volta_takes_the_memory_efficient_kernel() -> None:
    assert chosen("sm_70", torch.float16) == MEMORY_EFFICIENT


def test_in_fp32_the_memory_efficient_kernel_is_taken_everywhere() -> None:
    assert {chosen(target, torch.float32) for target in ("sm_70", "sm_80", "sm_90")} == {MEMORY_EFFICIENT}


def test_in_fp64_there_is_only_math() -> None:
    assert chosen("sm_90", torch.float64) == MATH


@needs_cudnn
def test_an_arbitrary_mask_takes_the_memory_efficient_kernel_where_cudnn_is_not_preferred() -> None:
    assert chosen("sm_80", mask=True) == MEMORY_EFFICIENT
    assert chosen("sm_90", mask=True) == CUDNN


@needs_cudnn
def test_grouped_queries_stay_with_flash_and_cudnn() -> None:
    assert chosen("sm_80", kv_heads=2, enable_gqa=True) == FLASH
    assert chosen("sm_90", kv_heads=2, enable_gqa=True) == CUDNN
    assert chosen("sm_80", torch.float32, kv_heads=2, enable_gqa=True) == MATH


@needs_cudnn
def test_cudnn_leaves_heads_that_are_too_large_to_flash() -> None:
    assert chosen("sm_100", head_dim=256) == FLASH
    assert chosen("sm_90", head_dim=256) == CUDNN


@needs_cudnn
def test_cudnn_knows_dropout_in_sixteenths_only() -> None:
    assert chosen("sm_90", dropout_p=0.1) == FLASH
    assert chosen("sm_90", dropout_p=0.125) == CUDNN


def test_ada_cannot_train_heads_between_192_and_224_with_flash() -> None:
    assert chosen("sm_89", head_dim=208) == MEMORY_EFFICIENT
    assert chosen("sm_89", head_dim=208, training=False) == FLASH
    assert chosen("sm_89", head_dim=256) == FLASH
    assert chosen("sm_89", head_dim=256, dropout_p=0.5) == MEMORY_EFFICIENT
    assert chosen("sm_80", head_dim=208) == FLASH


def test_flash_is_causal_only_for_square_problems() -> None:
    assert chosen("sm_80", columns=2 * ROWS, is_causal=True) == MEMORY_EFFICIENT


def test_the_program_can_choose_for_itself() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert chosen("sm_90") == MATH
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        assert chosen("sm_90") == FLASH


def inputs(head_dim: int = 64, kv_heads: int = HEADS, dtype: torch.dtype = torch.bfloat16, rows: int = ROWS) -> Any:
    def make() -> tuple[torch.Tensor, ...]:
        query = torch.empty(BATCH, rows, HEADS, head_dim, dtype=dtype, device="cuda").transpose(1, 2)
        key = torch.empty(BATCH, rows, kv_heads, head_dim, dtype=dtype, device="cuda").transpose(1, 2)
        return query.requires_grad_(), key.requires_grad_(), key.detach().clone().requires_grad_()

    return make


def test_flash_keeps_its_result_and_four_bytes_a_row(taken: Any) -> None:
    found = taken(inputs(), lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), "sm_80")

    seed = [((2,), "uint64"), ((), "uint64")] if torch_releases.since(2, 7) else []
    assert found.kept == [((BATCH, ROWS, HEADS, 64), "bfloat16"), ((BATCH, HEADS, ROWS), "float32"), *seed]


def test_flash_splits_the_keys_of_a_small_batch_over_blocks_that_add_up_in_float32(taken: Any) -> None:
    found = taken(
        inputs(rows=1024), lambda q, k, v: scaled_dot_product_attention(q[:1, :1], k[:1, :1], v[:1, :1]), "sm_80"
    )

    # 16 blocks of rows for 216 slots: four blocks of 256 keys are worth four splits
    assert found.temporary == [((4, 1, 1, 1024), "float32"), ((4, 1, 1, 1024, 64), "float32")]


def backward(target: str, make: Any, taken: Any) -> Any:
    def with_graph() -> tuple[torch.Tensor, torch.Tensor]:
        out = scaled_dot_product_attention(*make(), enable_gqa=True)
        return out, torch.empty_like(out)

    return taken(with_graph, lambda out, grad: out.backward(grad), target)


def test_flashs_backward_adds_up_the_querys_gradient_in_float32(taken: Any) -> None:
    found = backward("sm_80", inputs(head_dim=80), taken)

    assert found.temporary == [((BATCH, HEADS, ROWS), "float32"), ((BATCH, ROWS, HEADS, 96), "float32")]


def test_with_grouped_queries_flashs_backward_has_gradients_of_every_heads_key_and_value(taken: Any) -> None:
    found = backward("sm_80", inputs(kv_heads=2), taken)

    every_head = ((BATCH, ROWS, HEADS, 64), "bfloat16")
    assert found.temporary[-2:] == [every_head, every_head]


@needs_cudnn
def test_cudnn_keeps_its_result_and_four_bytes_a_row(taken: Any) -> None:
    found = taken(inputs(), lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), "sm_90")

    assert found.kept == [
        ((), "int64"),
        ((), "int64"),
        ((BATCH, HEADS, ROWS, 64), "bfloat16"),
        ((BATCH, HEADS, ROWS, 1), "float32"),
    ]
    assert found.unknown_workspaces == ("cuDNN attention, forward",)


@needs_cudnn
def test_cudnns_backward_takes_what_its_front_end_asks_for_and_names_the_rest_as_unknown(taken: Any) -> None:
    found = backward("sm_90", inputs(), taken)

    assert found.temporary_bytes == [BATCH * HEADS * ROWS * (64 + 1) * 4]
    assert "cuDNN attention, backward: beyond the front end's part" in found.unknown_workspaces


def test_memory_efficient_attention_pads_its_rows_to_32_and_keeps_its_seeds_on_the_host(taken: Any) -> None:
    found = taken(inputs(dtype=torch.float32, rows=250), lambda q, k, v: scaled_dot_product_attention(q, k, v))

    assert found.kept == [((BATCH, 250, HEADS, 64), "float32"), ((BATCH, HEADS, 256), "float32")]


def test_memory_efficient_backward_has_a_workspace_of_the_querys_gradient_in_float32(taken: Any) -> None:
    def with_graph() -> tuple[torch.Tensor, torch.Tensor]:
        out = scaled_dot_product_attention(*inputs(dtype=torch.float32)())
        return out, torch.empty_like(out)

    found = taken(with_graph, lambda out, grad: out.backward(grad), "sm_80")

    tiles, heads = (ROWS // 64) * (64 // 64), BATCH * HEADS
    assert found.temporary_bytes[-1] == heads * tiles * (16 + 4 * 64 * 64)


def test_math_keeps_the_probabilities(taken: Any) -> None:
    found = taken(inputs(dtype=torch.float64), lambda q, k, v: scaled_dot_product_attention(q, k, v))

    assert ((BATCH, HEADS, ROWS, ROWS), "float64") in found.kept
