"""apex's norms, rotations and optimizers ask for what theirs ask for.

Source: apex at the commit 6424da3, csrc/layer_norm_cuda.cpp, csrc/layer_norm_cuda_kernel.cu,
apex/optimizers/fused_{adam,sgd}.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_runs import Program, Run
from told_events import told_events

import planner.paper  # noqa: F401
from planner.paper.outside import apex


def trained(make: Callable[[], torch.nn.Module], autocast: bool = False) -> list[str]:
    def run() -> Any:
        given = torch.empty(6, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        module = make().cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            result = module(given)
        result.backward(torch.empty_like(result))
        return result, given, module

    return [line for line in told_events(run) if "norm" in line]


def test_layer_norm() -> None:
    assert trained(lambda: apex.FusedLayerNorm(32)) == [
        "+ norm_fwd 6x32 bfloat16",
        "+ norm_fwd 6 float32",  # mean
        "+ norm_fwd 6 float32",  # one over the deviation
        "+ norm_bwd 6x32 bfloat16",
        "+ norm_bwd 32 float32",
        "+ norm_bwd 32 float32",
        "+ norm_bwd 16x32 float32",
        "+ norm_bwd 16x32 float32",
        *["- norm_bwd 16x32"] * 2,
        *["- norm_fwd 6"] * 2,
    ]


def test_the_persistent_layer_norm_keeps_its_input_and_two_figures_a_row() -> None:
    def run() -> Any:
        given = torch.empty(3, 2, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        weight, bias = (torch.ones(32, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(2))
        result = apex.FastLayerNormFN.apply(given, weight, bias, 1e-5)  # type: ignore[no-untyped-call]
        result.backward(torch.empty_like(result))
        return result, given, weight, bias

    blocks = 132 * 2  # two a multiprocessor, each with sums of both weights
    assert [line for line in told_events(run) if "ln_" in line or "workspace" in line] == [
        "+ ln_fwd 3x2x32 bfloat16",
        "+ ln_fwd 6 float32",
        "+ ln_fwd 6 float32",
        "+ ln_bwd 3x2x32 bfloat16",
        "+ ln_bwd 32 bfloat16",
        "+ ln_bwd 32 bfloat16",
        f"+ workspace {2 * blocks * 32 * 4} uint8",
        *["- ln_fwd 6"] * 2,
        f"- workspace {2 * blocks * 32 * 4}",
    ]


def test_rms_norm_of_mixed_dtypes_that_keeps_its_result() -> None:
    assert trained(lambda: apex.MixedFusedRMSNorm(32, memory_efficient=True)) == [
        "+ norm_fwd 6x32 float32",
        "+ norm_fwd 6 float32",
        "+ norm_bwd 6x32 bfloat16",
        "+ norm_bwd 32 float32",
        "+ norm_bwd 16x32 float32",
        "- norm_bwd 16x32",
        "- norm_fwd 6",
    ]


@pytest.mark.parametrize(("autocast", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_autocast_casts_the_weight(autocast: bool, dtype: str) -> None:
    lines = trained(lambda: apex.FusedRMSNorm(32), autocast)

    assert f"+ norm_bwd 32 {dtype}" in lines


def test_adam_keeps_its_states_in_float32() -> None:
    def step() -> Any:
        parameter = torch.nn.Parameter(torch.empty(40, dtype=torch.bfloat16, device="cuda"))
        parameter.grad = torch.empty_like(parameter)
        optimizer = apex.FusedAdam([parameter])
        optimizer.step()
        optimizer.step()
        return optimizer

    assert told_events(step)[2:] == [
        "+ zeros 1 int32",
        *["+ zeros_like 40 bfloat16", "+ _to_copy 40 float32", "- zeros_like 40"] * 2,
    ]


def test_sgd_keeps_momentums_of_parameters_in_float16_and_float32_even_of_0() -> None:
    def step() -> Any:
        dtypes = torch.float32, torch.bfloat16, torch.float16
        parameters = [torch.nn.Parameter(torch.empty(40, dtype=dtype, device="cuda")) for dtype in dtypes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer = apex.FusedSGD(parameters, lr=0.1)
        optimizer.step()
        optimizer.step()
        return optimizer

    made = [line for line in told_events(step)[6:] if line.startswith("+")]
    assert made == ["+ _to_copy 1 int32", "+ zeros_like 40 float16", "+ zeros_like 40 float32"]


def test_a_rotation_keeps_the_frequencies_alone_and_lays_its_result_by_batch_where_asked() -> None:
    def run() -> Any:
        given = torch.empty(6, 2, 4, 8, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        frequencies = torch.empty(6, 1, 1, 8, device="cuda")
        result = apex.fused_apply_rotary_pos_emb(given, frequencies, transpose_output_memory=True)
        assert result.transpose(0, 1).is_contiguous()
        result.backward(torch.empty_like(result))
        return result, given

    lines = [line for line in told_events(run) if "rope" in line]
    assert lines == ["+ rope 2x6x4x8 bfloat16", "+ rope 2x6x4x8 bfloat16", "- rope 2x6x4x8"]


def test_a_program_finds_the_package_by_its_modules(run: Run, program: Program) -> None:
    lines = """
import apex, torch
from apex.multi_tensor_apply import multi_tensor_applier
import amp_C
model = torch.nn.Sequential(torch.nn.Linear(8, 8), apex.normalization.FusedLayerNorm(8)).cuda()
optimizer = apex.optimizers.FusedAdam(model.parameters())
model(torch.ones(2, 8, device="cuda")).sum().backward()
flag = torch.zeros(1, dtype=torch.int32, device="cuda")
gradients = [each.grad for each in model.parameters()]
multi_tensor_applier(amp_C.multi_tensor_scale, flag, [gradients, gradients], 0.5)
optimizer.step()
"""

    assert run(f"python {program(lines)}").iterations == 1


def test_softmaxes_of_scores_are_made_anew_under_a_mask_and_in_place_without() -> None:
    """Source: apex at the commit 6424da3, csrc/megatron/scaled_masked_softmax_cuda.cu, scaled_softmax_cuda.cu."""

    def run() -> Any:
        scores, mask = torch.empty(2, 4, 8, 8, dtype=torch.float16, device="cuda"), None
        kept = apex.MASKED_SOFTMAX["forward"](scores, mask, 1.0), apex.SOFTMAX["forward"](scores, 1.0)
        grads = apex.MASKED_SOFTMAX["backward"](scores, kept[0], 1.0), apex.SOFTMAX["backward"](scores, kept[1], 1.0)
        return kept, grads

    assert [line for line in told_events(run) if "softmax" in line] == [
        "+ softmax_fwd 2x4x8x8 float16",
        "+ softmax_fwd 2x4x8x8 float16",
        "+ softmax_bwd 2x4x8x8 float16",
    ]


@pytest.mark.parametrize(("columns", "rows"), [(1024, 4), (128, 8), (16, 16)])
def test_a_block_of_threads_takes_rows_of_scores_by_their_length(columns: int, rows: int) -> None:
    assert apex.MASKED_SOFTMAX["get_batch_per_block"](64, columns, 2, 8) == rows


def test_the_norm_of_several_tensors_is_summed_by_chunks_of_each() -> None:
    """Source: apex at the commit 6424da3, csrc/multi_tensor_l2norm_kernel.cu."""

    def run() -> Any:
        tensors = [torch.empty(count, device="cuda") for count in (5, 12)]
        return tensors, apex.multi_tensor_l2norm(4, torch.empty(0, device="cuda"), [tensors], True)

    assert [line for line in told_events(run) if "l2norm" in line and "+" in line] == [
        "+ multi_tensor_l2norm 320 float32",
        "+ multi_tensor_l2norm 6 float32",  # three chunks of each of two
        "+ multi_tensor_l2norm 2 float32",
        "+ multi_tensor_l2norm 1 float32",
    ]
