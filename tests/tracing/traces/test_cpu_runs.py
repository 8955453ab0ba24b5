"""Real steps on a CPU and over gloo, seen by torch's profiler, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import mixture_cases
import plain_cases
import pytest
import sharded_cases
import split_cases
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Category, Role

WORLDS = {
    "plain": ((plain_cases.ALONE, 1), (plain_cases.REPLICATED, 2)),
    "sharded": ((sharded_cases.PAIRS, 2), (sharded_cases.FOURS, 4)),
    "split": ((split_cases.PAIRS, 2),),
    "mixtures": ((mixture_cases.ALONE, 1), (mixture_cases.PAIRS, 2), (mixture_cases.FOURS, 4)),
}
REPLICATED = [each.metadata.name for each in plain_cases.REPLICATED]


def ranks(recording: str) -> list[tuple[str, str, int]]:
    worlds = WORLDS[recording]
    return [(recording, job.metadata.name, rank) for jobs, world in worlds for job in jobs for rank in range(world)]


Runs = Callable[[str], Both]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Both ways of every rank of a recording."""
    return cache(lambda recording: both_ways(tmp_path_factory.mktemp("runs"), WORLDS[recording], recording))


@pytest.mark.parametrize(
    ("recording", "name", "rank"),
    # Replicas are alike.
    [each for recording in WORLDS for each in ranks(recording) if each[1] not in REPLICATED or each[2] == 0],
)
def test_a_rank_takes_what_is_traced(runs: Runs, recording: str, name: str, rank: int) -> None:
    assert_exact(*runs(recording)[name, rank])


@pytest.mark.parametrize(
    ("recording", "name", "is_removed"),
    [
        ("plain", "ddp-static", lambda role: role.category is Category.BUCKET),
        ("sharded", "resharded", lambda _role: True),
        ("split", "split", lambda _role: True),
        ("mixtures", "split", lambda role: "experts" in role.name),
    ],
)
def test_a_block_less_is_noticed(runs: Runs, recording: str, name: str, is_removed: Callable[[Role], bool]) -> None:
    paper, real = runs(recording)[name, 0]
    blocks = [each.block for each in paper.events if isinstance(each, Role) and is_removed(each)]
    # The buckets of the first iteration are rebuilt.
    removed = blocks if name == "ddp-static" else blocks[:1]

    assert Run(without(paper.events, *removed), {}).categories != real.categories


@pytest.mark.parametrize("name", REPLICATED)
def test_the_reducer_says_the_same_of_its_buckets(runs: Runs, name: str) -> None:
    said = ("bucket_sizes", "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices", "has_rebuilt_buckets")
    paper, real = (run.ddp for run in runs("plain")[name, 0])
    assert {key: paper.get(key) for key in said} == {key: real.get(key) for key in said}


def test_the_rebuild_of_buckets_was_seen(runs: Runs) -> None:
    _, real = runs("plain")["ddp-copy", 0]
    assert real.ddp["has_rebuilt_buckets"] == 1
    assert real.ddp["rebuilt_bucket_sizes"] != real.ddp["bucket_sizes"]


def test_with_a_view_gradients_are_not_there_twice(runs: Runs) -> None:
    copy, view = (runs("plain")[name, 0][1] for name in ("ddp-copy", "ddp-view"))
    assert copy.categories["bucket"] == view.categories["bucket"] == copy.categories["gradient"]
    assert view.peak < copy.peak


@pytest.mark.parametrize(("_recording", "name", "rank"), ranks("sharded"))
def test_every_gather_and_reduction_takes_the_buffers_that_it_takes_on_paper(
    runs: Runs, _recording: str, name: str, rank: int
) -> None:
    paper, real = runs("sharded")[name, rank]

    # A copy that a thread of gloo makes of a buffer may be seen as well.
    assert Counter() != paper.buffers <= real.buffers


def test_a_buffer_of_a_gather_less_is_noticed(runs: Runs) -> None:
    paper, real = runs("sharded")["resharded", 0]
    sent = next(each.block for each in real.events if isinstance(each, Role) and each.name == "foreach_all_gather")

    assert not paper.buffers <= Run(without(real.events, sent), {}).buffers


@pytest.mark.parametrize(
    ("recording", "name", "last", "category"),
    [("sharded", "uneven", 3, "optimizer_state"), ("split", "split-tied", 1, "parameter")],
)
def test_the_last_rank_of_what_does_not_divide_holds_less(
    runs: Runs, recording: str, name: str, last: int, category: str
) -> None:
    held = [runs(recording)[name, rank][1].categories[category] for rank in (0, last)]

    assert held[1] < held[0]


@pytest.mark.parametrize(
    ("recording", "less", "more"),
    [
        ("split", ("split-logits", 0), ("split", 0)),
        ("mixtures", ("split", 0), ("split-uneven", 0)),
        ("mixtures", ("split-uneven", 1), ("split-uneven", 0)),
    ],
    ids=["logits that are split", "a balanced rank", "the peer of the fullest rank"],
)
def test_this_takes_less(runs: Runs, recording: str, less: tuple[str, int], more: tuple[str, int]) -> None:
    assert runs(recording)[less][1].peak < runs(recording)[more][1].peak
