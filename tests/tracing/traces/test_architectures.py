"""A training step of every architecture in the table on the paper GPU: it needs no values and trains all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from architectures import ONE_OF_EACH_KIND, TABLE, expected_unused, job_of, untrained

import planner.paper as paper
from planner.events import Alloc, Category, Free, Role
from planner.job.schema import Cluster, Gpu
from planner.planning.trace_source import USUAL_SOURCE
from planner.roles.modules import ModuleRoles
from planner.training import step

TARGETS = ("sm_70", "sm_86", "sm_100")


def bytes_of(category: Category, events: list[Any]) -> int:
    """Bytes of the blocks that belong to the category and were never given back."""
    sizes = {event.block: event.requested_bytes for event in events if isinstance(event, Alloc)}
    freed = {event.block for event in events if isinstance(event, Free)}
    last = {event.block: event.category for event in events if isinstance(event, Role)}
    return sum(sizes[block] for block, found in last.items() if found is category and block not in freed)


def run(entry: dict[str, Any], precision: str) -> tuple[step.Outcome, list[Any]]:
    with paper.gpu("sm_90") as gpu:
        outcome = step.run(job_of(entry, precision=precision), gpu.device)
        roles = ModuleRoles(gpu.recorder)
        roles.take(outcome.model)
        roles.assign_state(outcome.optimizer)
        return outcome, gpu.recorder.events()


@pytest.mark.parametrize("name", TABLE)
def test_a_step_in_bf16_trains_every_parameter(name: str) -> None:
    outcome, events = run(TABLE[name], "bf16_autocast")

    trained = [p for p in outcome.model.parameters() if p in outcome.optimizer.state]
    moments = 2 * sum(p.numel() * p.element_size() for p in trained)
    steps = 4 * len(trained)  # AdamW counts steps beside the parameters if it is fused or capturable
    assert untrained(outcome) == expected_unused(TABLE[name], outcome)
    assert bytes_of(Category.OPTIMIZER_STATE, events) in (moments, moments + steps)


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, target) for name in ONE_OF_EACH_KIND.values() for target in TARGETS],
)
def test_a_step_in_fp32_keeps_the_same_on_other_architectures(name: str, target: str) -> None:
    _, here = run(TABLE[name], "none")

    elsewhere = Cluster(gpu=Gpu(total_bytes=80 << 30, arch=target))
    there = USUAL_SOURCE.trace_rank(replace(job_of(TABLE[name], precision="none"), cluster=elsewhere), 0).written_out()

    for kept in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        assert bytes_of(kept, there) == bytes_of(kept, here) > 0
