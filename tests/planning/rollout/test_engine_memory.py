"""How an engine divides its share, and what it holds awake and asleep."""

from __future__ import annotations

from dataclasses import replace

from planner.job.overhead import OutsideEstimate
from planner.job.schema import Rollout
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.rollout import EngineHeld, EngineMemory, EngineState, engine_memory
from planner.units import GIB, MIB

FIGURES = EngineFigures(
    weight_tensors=(5 * GIB - MIB, 5 * GIB + MIB),
    kv_layers=32,
    activation_bytes=GIB,
    kv_token_bytes=128 * 1024,
)
OUTSIDE = OutsideEstimate(cuda_context_bytes=600 * MIB, nccl_bytes=0, low_bytes=500 * MIB, high_bytes=800 * MIB)
NON_TORCH = 164 * MIB
WEIGHTS = 10 * GIB + 2 * MIB
"""In segments of two MiB; a rest of one MiB is not a block of its own."""


def engine(share: float = 0.5, **rollout: object) -> EngineMemory:
    said = replace(Rollout(), **rollout)  # type: ignore[arg-type]
    return engine_memory(said, FIGURES, OUTSIDE, share, total_bytes=80 * GIB, free_at_start_bytes=70 * GIB)


def test_vllm_gives_its_cache_what_the_share_has_left() -> None:
    held = engine()

    assert held.kv_blocks == (40 * GIB - WEIGHTS - GIB - NON_TORCH) // (2 * MIB)
    assert held.kv_tokens == held.kv_blocks * 16


def test_sglang_takes_a_share_of_what_is_free_and_counts_no_activations() -> None:
    assert engine(engine="sglang").kv_blocks == (35 * GIB - WEIGHTS) // (2 * MIB)


def test_running_it_holds_its_share_and_what_lies_outside_of_it() -> None:
    held = engine().held(EngineState.RUNNING)

    rounding = held.kv_cache_bytes - engine().kv_tokens * FIGURES.kv_token_bytes
    assert 0 <= rounding <= 32 * 2 * MIB
    assert held.total_bytes - rounding <= 40 * GIB + OUTSIDE.total_bytes
    assert held.total_bytes - rounding > 40 * GIB + OUTSIDE.total_bytes - 2 * MIB


def test_asleep_it_keeps_what_is_outside_of_its_pools() -> None:
    assert engine().held(EngineState.ASLEEP) == EngineHeld(outside_bytes=OUTSIDE.total_bytes + NON_TORCH)


def test_its_weights_wake_without_its_cache() -> None:
    held = engine().held(EngineState.WEIGHTS)

    assert (held.weights_bytes, held.kv_cache_bytes) == (WEIGHTS, 0)


def test_one_that_never_sleeps_keeps_both() -> None:
    awake = engine(sleep_level=0)

    assert awake.held(EngineState.ASLEEP) == awake.held(EngineState.WEIGHTS) == awake.held(EngineState.WEIGHTS_AND_KV)


def test_before_its_start_it_holds_nothing() -> None:
    assert engine(sleep_level=0).held(EngineState.ABSENT) == EngineHeld()


def test_cuda_graphs_come_on_top_and_widen_the_interval() -> None:
    eager, captured = engine(), engine(enforce_eager=False)

    assert captured.held(EngineState.ASLEEP).graphs_bytes == GIB
    assert captured.kv_blocks == eager.kv_blocks
    assert (captured.high_bytes - eager.high_bytes, captured.low_bytes - eager.low_bytes) == (2 * GIB, 896 * MIB)


def test_a_share_smaller_than_the_weights_leaves_no_block() -> None:
    assert engine(0.1).kv_blocks == 0
