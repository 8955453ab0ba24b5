"""FullyShardedDataParallel for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

import flat_sharded_cases as cases
import pytest
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Category, Role

WORLDS = ((cases.PAIRS, 2), (cases.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "flat_sharded")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_a_rank_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def test_what_a_unit_takes_is_named(runs: Both) -> None:
    paper, _ = runs["flat-mixed", 0]

    roles = {(each.category, each.name) for each in paper.events if isinstance(each, Role)}

    unit = "layers.0._flat_param"
    assert roles >= {
        (Category.PARAMETER, unit),
        (Category.PARAMETER, f"{unit} (gathered)"),
        (Category.COMMUNICATION, f"{unit} (low precision)"),
        (Category.COMMUNICATION, "reduce_gradient"),
        (Category.GRADIENT, f"{unit} (whole)"),
        (Category.GRADIENT, unit),
        (Category.OPTIMIZER_STATE, f"{unit}.exp_avg"),
    }


def test_a_shard_less_is_noticed(runs: Both) -> None:
    paper, real = runs["full-shard", 0]
    shard = next(each.block for each in paper.events if isinstance(each, Role) and each.name == "_flat_param")

    assert Run(without(paper.events, shard), {}).categories != real.categories
