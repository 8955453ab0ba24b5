"""Real steps on a CPU, seen by torch's profiler, beside the same steps traced on a GPU on paper."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import plain_cases as cases
import pytest
from cpu_runs import Run, assert_exact, both_ways, without

from planner.events import Category, Role

ALONE = [each.metadata.name for each in cases.ALONE]
REPLICATED = [each.metadata.name for each in cases.REPLICATED]


@dataclass(frozen=True)
class Runs:
    paper: dict[str, Run]
    real: dict[str, Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_all(tmp_path_factory.mktemp("runs"))


def run_all(folder: Path) -> Runs:
    """Every job once on paper and once for real; replicated ones as two processes that meet over gloo."""
    found = both_ways(folder, [(cases.ALONE, 1), (cases.REPLICATED, 2)], "plain")
    first = {name: runs for (name, rank), runs in found.items() if rank == 0}
    return Runs({name: paper for name, (paper, _) in first.items()}, {name: real for name, (_, real) in first.items()})


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_phases_parameters_gradients_buckets_and_optimizer_state_are_exact(runs: Runs, name: str) -> None:
    assert_exact(runs.paper[name], runs.real[name])


@pytest.mark.parametrize("name", REPLICATED)
def test_the_reducer_says_the_same_of_its_buckets(runs: Runs, name: str) -> None:
    said = ("bucket_sizes", "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices", "has_rebuilt_buckets")
    paper, real = runs.paper[name].ddp, runs.real[name].ddp
    assert {key: paper.get(key) for key in said} == {key: real.get(key) for key in said}


def test_the_rebuild_of_buckets_was_seen(runs: Runs) -> None:
    assert runs.real["ddp-copy"].ddp["has_rebuilt_buckets"] == 1
    assert runs.real["ddp-copy"].ddp["rebuilt_bucket_sizes"] != runs.real["ddp-copy"].ddp["bucket_sizes"]


def test_with_a_view_gradients_are_not_there_twice(runs: Runs) -> None:
    copy, view = runs.real["ddp-copy"].categories, runs.real["ddp-view"].categories
    assert copy["bucket"] == view["bucket"] == copy["gradient"]
    assert runs.real["ddp-view"].peak < runs.real["ddp-copy"].peak


def test_a_reducer_without_its_bucket_is_noticed(runs: Runs) -> None:
    events = runs.paper["ddp-static"].events
    buckets = [each.block for each in events if isinstance(each, Role) and each.category is Category.BUCKET]
    assert Run(without(events, *buckets), {}).categories != runs.real["ddp-static"].categories
