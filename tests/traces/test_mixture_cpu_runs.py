"""Mixtures of experts for real, alone and over gloo, beside the same ranks on paper with the kernels of a CPU."""

from __future__ import annotations

import mixture_cases as cases
import pytest
from cpu_runs import Both, Run, assert_exact, assert_exact, both_ways, peaks_that_differ, without

from planner.events import Alloc, Event, Role
from planner.upstream import torch_releases

WORLDS = ((cases.ALONE, 1), (cases.PAIRS, 2), (cases.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]
FULLEST = [
    (job.metadata.name, rank)
    for jobs, world in WORLDS
    for job in jobs
    for rank in range(world)
    if job.parallel.ep.imbalance == 1 or rank % job.parallel.ep.degree == 0
]
"""Where peers are there and tokens are uneven, the first rank along ep is the fullest, as which each is planned."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "mixtures")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_experts_gradients_and_optimizer_state_are_exact(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


@pytest.mark.parametrize(("name", "rank"), FULLEST)
def test_every_phase_peaks_within_half_a_percent_of_the_whole(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def test_the_fullest_rank_takes_more_than_a_balanced_one_and_than_its_peer(runs: Both) -> None:
    balanced, fullest, other = (
        runs[which][1].peak for which in (("split", 0), ("split-uneven", 0), ("split-uneven", 1))
    )

    assert fullest > balanced
    assert fullest > other


@pytest.mark.skipif(not torch_releases.since(2, 13), reason="torch below 2.13 sends fewer times")
def test_tokens_sent_to_experts_less_are_noticed(runs: Both) -> None:
    """Those of the last layer: the forward is at its highest there."""
    paper, real = runs["split", 0]
    sent = [each.block for each in paper.events if isinstance(each, Role) and each.name == "all_to_all_single"]

    assert peaks_that_differ(Run(without(paper.events, sent[2]), {}), real) != {}


def test_an_activation_of_experts_less_is_noticed(runs: Both) -> None:
    paper, real = runs["mixtral", 0]
    computed = next(each.block for each in paper.events if _of_experts(each))

    assert peaks_that_differ(Run(without(paper.events, computed), {}), real) != {}


def test_an_expert_less_is_noticed(runs: Both) -> None:
    paper, real = runs["split", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role) and "experts" in each.name)

    assert Run(without(paper.events, first), {}).categories != real.categories


def _of_experts(event: Event) -> bool:
    """What their activation function gives, which is kept for the backward."""
    return isinstance(event, Alloc) and event.origin is not None and event.origin.module.endswith("experts.act_fn")
