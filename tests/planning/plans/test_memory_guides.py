"""The sentences that guides to GPU memory have in common, each as a test of plans.

P are the bytes of the parameters. Workspaces of cuBLAS, which guides leave out, are their own category.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from planner.events import Category, Phase
from planner.job.schema import CheckpointLoad, Eval, Loss, Optimizer, Recompute
from planner.upstream import torch_releases

Planned = Callable[..., Any]
P = 4 * (2 * 512 * 128 + 2 * (4 * 128 * 128 + 3 * 128 * 256 + 2 * 128) + 128)
EMBEDDING = 4 * 512 * 128
NORMS = 4 * 5 * 128
LINEARS = P - EMBEDDING - NORMS
WORKSPACE = 32 * 2**20
INPUT = 2 * 8 * 64 * 8


def sgd(**arguments: Any) -> Optimizer:
    return Optimizer(name="SGD", arguments=arguments)


def test_after_loading_the_model_there_are_its_parameters(planned: Planned) -> None:
    assert planned().after("load", 0) == {"parameter": P}


def test_after_the_forward_activations_have_come_to_the_parameters(planned: Planned) -> None:
    held = planned().after("forward", 1)

    activations = held.pop("activation")
    assert held == {"parameter": P, "input": INPUT, "workspace": WORKSPACE}
    assert activations > P


def test_after_the_backward_gradients_have_taken_the_place_of_the_activations(planned: Planned) -> None:
    assert planned().after("backward", 1) == {"parameter": P, "gradient": P, "workspace": 2 * WORKSPACE}


def test_after_the_step_the_optimizers_state_is_there(planned: Planned) -> None:
    held = planned(zero_grad_set_to_none=False).after("optimizer_step", 1)

    assert held == {"parameter": P, "gradient": P, "optimizer_state": 2 * P, "workspace": 2 * WORKSPACE}


def test_from_the_second_iteration_on_parameters_and_state_are_there_throughout(planned: Planned) -> None:
    held = planned().after("forward", 2)

    del held["activation"]
    assert held == {"parameter": P, "optimizer_state": 2 * P, "input": INPUT, "workspace": 2 * WORKSPACE}


def test_the_second_iteration_peaks_higher_than_the_first_by_the_state_at_least(planned: Planned) -> None:
    job = planned()

    # More than that: in the first, the backward's workspace comes only after the loss has been taken back.
    assert 2 * P <= job.peak(2) - job.peak(1) < 2 * P + WORKSPACE


def test_every_later_iteration_peaks_as_high_as_the_second(planned: Planned) -> None:
    assert planned().peak(3) == planned().peak(2)


@pytest.mark.parametrize(
    ("optimizer", "times"),
    [
        (Optimizer(name="Adam"), 2),
        (Optimizer(name="AdamW"), 2),
        (Optimizer(name="AdamW", arguments={"amsgrad": True}), 3),
        (Optimizer(name="RMSprop"), 1),
        (Optimizer(name="RMSprop", arguments={"momentum": 0.9, "centered": True}), 3),
        (Optimizer(name="Adagrad"), 1),
        (sgd(momentum=0.9), 1),
        (sgd(), 0),
    ],
    ids=["Adam", "AdamW", "AMSGrad", "RMSprop", "RMSprop-centered", "Adagrad", "SGD-momentum", "SGD"],
)
def test_an_optimizer_keeps_so_many_times_the_parameters(planned: Planned, optimizer: Optimizer, times: int) -> None:
    held = planned(optimizer=optimizer, iterations=2).after("optimizer_step", 2)

    assert held.get("optimizer_state", 0) == times * P


def test_adafactor_keeps_far_less(planned: Planned) -> None:
    held = planned(optimizer=Optimizer(name="Adafactor"), iterations=2).after("optimizer_step", 2)

    assert 0 < held["optimizer_state"] < P / 50


def test_mixed_precision_keeps_parameters_gradients_and_state_in_float32(planned: Planned) -> None:
    mixed, full = planned(precision="bf16_autocast"), planned()

    assert mixed.after("backward", 2) == full.after("backward", 2)
    assert {block.origin.dtype for block in mixed.blocks(Category.GRADIENT, Phase.BACKWARD, 2)} == {"float32"}


def by_op(job: Any) -> Counter[str]:
    sums: Counter[str] = Counter()
    for block in job.blocks(Category.ACTIVATION, Phase.FORWARD, 2):
        sums[block.origin.op] += block.requested_bytes
    return sums


def test_mixed_precision_halves_what_matmuls_and_what_follows_them_leave_behind(planned: Planned) -> None:
    mixed, full = by_op(planned(precision="bf16_autocast")), by_op(planned())

    for op in ("aten.mm", "aten.silu", "aten.mul"):
        assert 2 * mixed[op] == full[op] > 0
    for op in ("aten._log_softmax", "aten.index_select"):
        assert mixed[op] == full[op] > 0


def test_mixed_precision_keeps_a_half_copy_of_each_weight_from_the_forward_to_its_backward(planned: Planned) -> None:
    def casts(phase: Phase) -> int:
        job = planned(precision="bf16_autocast")
        shapes = {(128, 128), (256, 128), (128, 256), (512, 128)}
        copies = [
            block for category in (Category.ACTIVATION, Category.TEMPORARY) for block in job.blocks(category, phase, 2)
            if block.origin.dtype == "bfloat16" and block.origin.shape in shapes and block.origin.op != "aten.mm"
        ]  # fmt: skip
        return sum(block.requested_bytes for block in copies)

    assert casts(Phase.FORWARD) == LINEARS // 2
    assert casts(Phase.BACKWARD) == 0


def test_with_few_activations_mixed_precision_costs_more_than_it_saves(planned: Planned) -> None:
    few: dict[str, Any] = {"micro_batch_size": 1, "sequence_length": 32}

    mixed, full = planned(precision="bf16_autocast", **few), planned(**few)

    assert mixed.after("forward", 2)["activation"] > full.after("forward", 2)["activation"]


def test_pure_bfloat16_halves_everything(planned: Planned) -> None:
    pure, full = planned(model={"parameter_dtype": "bfloat16"}, loss=Loss(dtype="bfloat16")), planned()
    half = P // 2 + NORMS // 2  # but for the norms, whose halves still take a block of 512 bytes each

    assert pure.after("load", 0) == {"parameter": half}
    held = pure.after("backward", 2)
    assert (held["parameter"], held["gradient"], held["optimizer_state"]) == (half, half, 2 * half)
    activations = pure.after("forward", 2)["activation"] / full.after("forward", 2)["activation"]
    if torch_releases.since(2, 9):  # before there is no fused RMS norm: its input is kept in float32
        assert activations == pytest.approx(0.5, rel=0.01)


def test_recompute_trades_activations_for_a_second_forward(planned: Planned) -> None:
    none, selective, full = (planned(recompute=Recompute(mode=mode)) for mode in ("none", "selective", "full"))

    def activations(job: Any) -> int:
        return int(job.after("forward", 2)["activation"])

    def matmuls(job: Any) -> int:
        return sum(
            getattr(event, "origin", None) is not None and event.origin.op == "aten.mm" for event in job.trace.events
        )

    assert activations(full) < activations(selective) < activations(none)
    assert full.peak(2) < selective.peak(2) < none.peak(2)
    assert matmuls(full) > matmuls(selective) > matmuls(none)
    assert full.after("backward", 2) == none.after("backward", 2)


def test_full_recompute_keeps_of_a_block_its_input_only(planned: Planned) -> None:
    job = planned(recompute=Recompute(mode="full"))

    kept = [
        b.requested_bytes for b in job.blocks(Category.ACTIVATION, Phase.FORWARD, 2) if ".attention" in b.origin.module
    ]
    assert kept == []


def test_recomputing_every_second_block_keeps_the_activations_of_the_others(planned: Planned) -> None:
    none, every, full = (
        planned(recompute=recompute).after("forward", 2)["activation"]
        for recompute in (Recompute(), Recompute(mode="every", every=2), Recompute(mode="full"))
    )

    assert none - every == pytest.approx((none - full) / 2, rel=0.1)


def test_a_checkpoint_on_the_device_costs_another_copy_of_the_parameters_while_it_is_loaded(planned: Planned) -> None:
    job = planned(checkpoint_load=CheckpointLoad(map_location="device"))

    assert job.phase("checkpoint_load", 0).peak_allocated_bytes == 2 * P
    assert "other" not in job.after("forward", 1)
    assert job.peak(2) == planned().peak(2)


def test_a_checkpoint_loaded_by_way_of_the_host_costs_nothing(planned: Planned) -> None:
    job = planned(checkpoint_load=CheckpointLoad(map_location="cpu"))

    assert job.phase("checkpoint_load", 0).peak_allocated_bytes == P
    assert job.peak(2) == planned().peak(2)


def test_evaluation_without_a_graph_stays_below_training_and_leaves_nothing(planned: Planned) -> None:
    job = planned(eval=Eval(micro_batch_size=8, every=2))

    evaluation, forward = job.phase("eval", 2), job.phase("forward", 2)
    activations = job.after("forward", 2)["activation"]
    assert evaluation.peak_allocated_bytes < forward.peak_allocated_bytes - activations / 2
    assert job.after("eval", 2) == job.after("optimizer_step", 2)


def test_an_evaluation_of_larger_batches_can_be_the_peak(planned: Planned) -> None:
    job = planned(eval=Eval(micro_batch_size=256, every=2), iterations=2)

    assert (job.statement.peak.phase, job.statement.peak.iteration) == (Phase.EVAL, 2)


def test_gradient_accumulation_keeps_gradients_between_micro_batches_and_adds_no_activations(planned: Planned) -> None:
    first, second, third = planned(gradient_accumulation_steps=3).ends("forward", 1)

    assert "gradient" not in first
    assert second["gradient"] == third["gradient"] == P
    assert first["activation"] == second["activation"] == third["activation"]


def test_a_micro_batch_three_times_as_large_has_three_times_the_activations(planned: Planned) -> None:
    large, small = (planned(micro_batch_size=size).after("forward", 2)["activation"] for size in (6, 2))

    assert large == pytest.approx(3 * small, rel=0.02)


def test_fp16_with_a_scaler_keeps_the_scale_and_its_growth_and_nothing_else(planned: Planned) -> None:
    fp16, bf16 = planned(precision="fp16_autocast"), planned(precision="bf16_autocast")

    assert sum(fp16.after("optimizer_step", 3).values()) - sum(bf16.after("optimizer_step", 3).values()) == 2 * 512


def test_zero_grad_frees_the_gradients_unless_it_only_zeroes_them(planned: Planned) -> None:
    assert "gradient" not in planned(zero_grad_set_to_none=True).after("optimizer_step", 2)
    assert planned(zero_grad_set_to_none=False).after("optimizer_step", 2)["gradient"] == P


def test_gradients_that_are_only_zeroed_lie_under_the_next_activations(planned: Planned) -> None:
    kept, freed = planned(zero_grad_set_to_none=False), planned()

    assert kept.phase("forward", 2).end_allocated_bytes == freed.phase("forward", 2).end_allocated_bytes + P


def test_gradient_clipping_takes_norms_not_copies(planned: Planned) -> None:
    """Plain SGD steps without any temporary, so that what clipping takes is seen."""
    clipped, plain = (planned(optimizer=sgd(), gradient_clipping=limit) for limit in (1.0, 0.0))

    taken = (
        clipped.phase("optimizer_step", 2).peak_allocated_bytes - plain.phase("optimizer_step", 2).peak_allocated_bytes
    )
    assert 0 < taken < P / 50
    assert clipped.after("optimizer_step", 2) == plain.after("optimizer_step", 2)


def test_a_fused_optimizer_needs_no_copies_a_loop_one_and_foreach_all_at_once(planned: Planned) -> None:
    def temporary(**arguments: Any) -> int:
        job = planned(optimizer=Optimizer(name="AdamW", arguments=arguments))
        standing = sum(job.after("backward", 2).values())
        return int(job.phase("optimizer_step", 2).peak_allocated_bytes) - standing

    fused, loop, foreach, default = (
        temporary(**each) for each in ({"fused": True}, {"foreach": False}, {"foreach": True}, {})
    )
    assert fused < 2**16
    assert EMBEDDING <= loop <= 3 * EMBEDDING
    assert P <= foreach < 2 * P
    assert default == foreach


def test_frozen_parameters_have_no_gradients_and_no_state(planned: Planned) -> None:
    weight = 4 * 128 * 128

    held = planned("frozen").after("backward", 2)

    assert (held["parameter"], held["gradient"], held["optimizer_state"]) == (3 * weight, 2 * weight, 4 * weight)


def test_tied_embeddings_are_there_once(planned: Planned) -> None:
    from planner.job.schema import Decoder

    tied = Decoder(layers=2, hidden=128, heads=2, kv_heads=2, ffn=256, vocab=512, tie_embeddings=True)

    assert planned(model={"decoder": tied}).after("load", 0) == {"parameter": P - EMBEDDING}
