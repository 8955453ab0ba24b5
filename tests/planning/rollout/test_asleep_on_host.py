"""What a sleeping engine holds on the host."""

from __future__ import annotations

from dataclasses import replace

from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.job.schema import Rollout
from planner.tracing.rank_trace import EngineFigures
from planner.tracing.rollout import backup_blocks, with_sleeping_weights
from planner.units import KIB, MIB

FIGURES = EngineFigures(
    weight_tensors=(31 * MIB, 31 * MIB, 8 * KIB, 5 * MIB), kv_layers=1, activation_bytes=0, kv_token_bytes=2
)
SYNC, ROLLOUT, FORWARD = (Mark(phase, 1) for phase in (Phase.WEIGHT_SYNC, Phase.ROLLOUT, Phase.FORWARD))


def test_each_segment_has_a_pinned_copy() -> None:
    assert backup_blocks(FIGURES) == ((32 * MIB, 2), (20 * MIB, 1), (2 * MIB, 1))


def test_they_are_there_from_a_rollouts_end_to_the_next_sync() -> None:
    own: list[HostEvent] = [
        SYNC, HostAlloc(7, MIB, HostCategory.OTHER), ROLLOUT, FORWARD, replace(SYNC, iteration=2)
    ]  # fmt: skip

    found = with_sleeping_weights(own, FIGURES, Rollout(sleep_level=1))

    asleep = [
        HostAlloc(8 + at, size, HostCategory.PARAMETER, pinned=True, count=count)
        for at, (size, count) in enumerate(backup_blocks(FIGURES))
    ]
    woken = [HostFree(each.block) for each in asleep]
    assert found == (*own[:4], *asleep, own[4], *woken)


def test_at_level_2_and_without_sleep_there_are_none() -> None:
    own = (SYNC, ROLLOUT, FORWARD)

    assert [with_sleeping_weights(own, FIGURES, Rollout(sleep_level=level)) for level in (0, 2)] == [own, own]
