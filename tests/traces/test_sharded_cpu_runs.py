"""fully_shard for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

from collections import Counter

import pytest
import sharded_cases as cases
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Role

WORLDS = ((cases.PAIRS, 2), (cases.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "sharded")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_a_rank_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_every_gather_and_reduction_takes_the_buffers_that_it_takes_on_paper(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    # A copy that a thread of gloo makes of a buffer may be seen as well.
    assert Counter() != paper.buffers <= real.buffers


def test_a_buffer_of_a_gather_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    sent = next(each.block for each in real.events if isinstance(each, Role) and each.name == "foreach_all_gather")

    assert not paper.buffers <= Run(without(real.events, sent), {}).buffers


def test_a_shard_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role))

    mutant = Run(without(paper.events, first), {})

    assert mutant.categories != real.categories


def test_the_last_rank_of_an_uneven_world_holds_less(runs: Both) -> None:
    first, last = (runs["uneven", rank][1].categories for rank in (0, 3))

    assert last["optimizer_state"] < first["optimizer_state"]
