"""The table of a GPU that a trainer shares with an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.events import Phase
from planner.report.plan_text import share_sentences, table_lines
from planner.report.statement import SharedGpu, SharedPhase
from planner.report.style import Style
from planner.units import GIB, MIB

ROLLOUT = SharedPhase(
    phase=Phase.ROLLOUT,
    iteration=2,
    trainer_bytes=GIB,
    reference_bytes=0,
    reward_bytes=0,
    outside_bytes=GIB,
    engine_weights_bytes=8 * GIB,
    engine_kv_cache_bytes=20 * GIB,
    engine_activation_bytes=GIB,
    engine_outside_bytes=GIB,
    total_bytes=32 * GIB,
    interval_bytes=(30 * GIB, 34 * GIB),
)
BACKWARD = SharedPhase(
    phase=Phase.BACKWARD,
    iteration=2,
    trainer_bytes=20 * GIB,
    reference_bytes=2 * GIB,
    reward_bytes=0,
    outside_bytes=GIB,
    engine_weights_bytes=0,
    engine_kv_cache_bytes=0,
    engine_activation_bytes=0,
    engine_outside_bytes=GIB,
    total_bytes=24 * GIB,
    interval_bytes=(22 * GIB, 26 * GIB),
)
SHARED = SharedGpu(
    phases=(ROLLOUT, BACKWARD),
    utilization=0.5,
    solved=False,
    kv_blocks=10240,
    kv_tokens=163840,
    kv_block_bytes=2 * MIB,
    largest_safe_utilization=0.55,
    largest_utilization=0.6,
    kept=(),
    assumed=(),
)


def table(shared: SharedGpu, capacity_bytes: int = 40 * GIB, **style: Any) -> list[str]:
    return [line.rstrip() for line in table_lines(shared, capacity_bytes, Style(**style))]


def test_a_row_for_each_phase_and_the_fullest_marked() -> None:
    assert table(SHARED) == [
        "  phase                  trainer     frozen    weights   KV cache   the rest   together",
        "  rollout               2.00 GiB              8.00 GiB  20.00 GiB   2.00 GiB  32.00 GiB ◂",
        "  backward             21.00 GiB   2.00 GiB                         1.00 GiB  24.00 GiB",
    ]


def test_without_frozen_models_they_have_no_column() -> None:
    alone = replace(SHARED, phases=(ROLLOUT,))

    assert table(alone, unicode=False) == [
        "  phase                  trainer    weights   KV cache   the rest   together",
        "  rollout               2.00 GiB   8.00 GiB  20.00 GiB   2.00 GiB  32.00 GiB <-",
    ]


def test_a_phase_that_exceeds_is_red() -> None:
    rows = table(SHARED, 30 * GIB, color=True)

    assert ["\x1b[31m" in row for row in rows] == [False, True, False]


def test_the_share_its_cache_and_the_largest_shares_are_said() -> None:
    assert list(share_sentences(SHARED)) == [
        "gpu_memory_utilization 0.50: 10,240 blocks of 2.00 MiB, 163,840 tokens",
        "largest safe share: 0.55; largest that does not exceed: 0.60",
    ]


def test_a_share_that_planner_found_is_said_to_be() -> None:
    first, _ = share_sentences(replace(SHARED, solved=True))

    assert first.startswith("gpu_memory_utilization 0.50 (found by planner)")


def test_no_share_may_be_safe_and_none_may_go() -> None:
    tight = replace(SHARED, largest_safe_utilization=0.0)
    none = replace(tight, largest_utilization=0.0)

    assert list(share_sentences(tight))[1] == "largest safe share: none; largest that does not exceed: 0.60"
    assert list(share_sentences(none))[1] == "no share goes: it exceeds with every one"
