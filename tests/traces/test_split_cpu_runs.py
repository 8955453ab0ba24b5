"""Tensor parallelism for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

import pytest
import split_cases as cases
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Role

EVERY_RANK = [(job.metadata.name, rank) for job in cases.PAIRS for rank in (0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(cases.PAIRS, 2)], "split")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_a_rank_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def test_a_part_of_a_parameter_less_is_noticed(runs: Both) -> None:
    paper, real = runs["split", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role))

    mutant = Run(without(paper.events, first), {})

    assert mutant.categories != real.categories


def test_logits_that_are_split_take_less(runs: Both) -> None:
    whole, parts = runs["split", 0][1], runs["split-logits", 0][1]

    assert parts.peak < whole.peak


def test_the_last_rank_of_a_vocabulary_that_does_not_divide_holds_less(runs: Both) -> None:
    first, last = (runs["split-tied", rank][1].categories for rank in (0, 1))

    assert last["parameter"] < first["parameter"]
