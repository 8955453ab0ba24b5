"""Mixtures of experts for real, alone and over gloo, beside the same ranks on a GPU on paper."""

from __future__ import annotations

import mixture_cases as cases
import pytest
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Role

WORLDS = ((cases.ALONE, 1), (cases.PAIRS, 2), (cases.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "mixtures")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_experts_gradients_and_optimizer_state_are_exact(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def test_the_fullest_rank_takes_more_than_a_balanced_one_and_than_its_peer(runs: Both) -> None:
    balanced, fullest, other = (
        runs[which][1].peak for which in (("split", 0), ("split-uneven", 0), ("split-uneven", 1))
    )

    assert fullest > balanced
    assert fullest > other


def test_an_expert_less_is_noticed(runs: Both) -> None:
    paper, real = runs["split", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role) and "experts" in each.name)

    assert Run(without(paper.events, first), {}).categories != real.categories
