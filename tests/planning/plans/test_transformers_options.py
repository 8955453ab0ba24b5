"""How a transformers model is called decides what it takes: padding, and tokens split over ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.job.schema import Cluster, Gpu, Job, Model, Parallel, Recompute, Tp, Train
from planner.planning.plan import PlanningResult, plan_job
from planner.searching.advice import advise
from planner.searching.exact_plans import PlansHere
from planner.units import GIB, MIB

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
BATCH, TOKENS = 4, 256


def job(*, model: dict[str, Any] | None = None, parallel: Parallel | None = None, **train: Any) -> Job:
    split = parallel or Parallel()
    return Job(
        model=Model(**{"hf_config": LLAMA, "parameter_dtype": "bfloat16", **(model or {})}),
        train=Train(**{"micro_batch_size": BATCH, "sequence_length": TOKENS, **train}),
        parallel=split,
        cluster=Cluster(gpus_per_node=split.tp.degree, gpu=Gpu(total_bytes=80 * GIB, arch="sm_90")),
    )


def peak(planned: PlanningResult) -> int:
    return planned.plan.rank_classes[0].peak.allocated_bytes


def shapes(planned: PlanningResult) -> set[tuple[int, ...]]:
    origins = (getattr(event, "origin", None) for event in planned.events_of(0))
    return {origin.shape for origin in origins if origin}


def note(planned: PlanningResult) -> str:
    return next(each for each in planned.plan.notes if each.startswith("Assumed batches"))


def test_padding_gives_the_mask_to_attention_and_repeats_keys_and_values() -> None:
    whole, padded = plan_job(job()), plan_job(job(padding="right"))
    mask, repeated = (BATCH, 1, TOKENS, TOKENS), (BATCH, 2, 4, TOKENS, 8)

    assert {mask, repeated} <= shapes(padded)
    assert {mask, repeated}.isdisjoint(shapes(whole))
    assert "without an attention mask (train.padding: none)" in note(whole)
    assert "no past_key_values in training (as transformers' Trainer has it)" in note(whole)
    assert "an attention mask (train.padding: right)" in note(padded)


def test_one_sequence_is_never_padded() -> None:
    """The mask is there, and has no gaps: transformers drops it."""
    whole, padded = (plan_job(job(micro_batch_size=1, padding=each)) for each in ("none", "right"))

    assert abs(peak(padded) - peak(whole)) < 64 * 1024


def test_what_a_job_of_other_inputs_takes_is_not_said() -> None:
    planned = plan_job(
        replace(job(), model=Model(decoder=None, hf_config={"model_type": "resnet"}), train=Train(micro_batch_size=1))
    )

    assert not any(each.startswith("Assumed batches") for each in planned.plan.notes)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_tokens_split_over_the_ranks_take_less_of_what_lies_between_the_blocks(recompute: str) -> None:
    def over_ranks(*, tokens: bool) -> PlanningResult:
        split = Parallel(tp=Tp(degree=2, sequence_parallel=tokens))
        return plan_job(job(parallel=split, recompute=Recompute(mode=recompute)))

    saved = peak(over_ranks(tokens=False)) - peak(over_ranks(tokens=True))
    residual_bytes = BATCH * TOKENS * 64 * 2

    assert saved >= 4 * residual_bytes // 2


def test_advice_says_when_splitting_the_tokens_alone_makes_a_job_fit() -> None:
    wanted = job(parallel=Parallel(tp=Tp(degree=2)), micro_batch_size=64, recompute=Recompute(mode="full"))
    whole = plan_job(wanted).plan.rank_classes[0].peak.device_bytes
    split = replace(wanted, parallel=Parallel(tp=Tp(degree=2, sequence_parallel=True)))
    needed = plan_job(split).plan.rank_classes[0].peak.device_bytes
    between = Gpu(total_bytes=(whole + needed) // 2 // MIB * MIB, arch="sm_90")
    tight = replace(wanted, cluster=replace(wanted.cluster, gpu=between))

    found = advise(tight, PlansHere(), widely=False).advice

    assert {"parallel.tp.sequence_parallel": True} in [each.change for each in found]
