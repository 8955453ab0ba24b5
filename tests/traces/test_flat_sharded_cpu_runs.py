"""FullyShardedDataParallel for real, over gloo, beside the same ranks traced on paper with the kernels of a CPU."""

from __future__ import annotations

import flat_sharded_cases as cases
import pytest
from cpu_runs import Both, assert_alike, both_ways

WORLDS = ((cases.PAIRS, 2), (cases.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "flat_sharded")


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_a_rank_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_alike(*runs[name, rank])
