"""fully_shard for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import sharded_cases as cases
from cpu_runs import Both, Run, assert_exact, both_ways, without

from planner.events import Alloc, Category, Event, Role

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
    assert Counter() != _buffers(paper.events) <= _buffers(real.events)


def test_a_buffer_of_a_gather_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    sent = next(each.block for each in real.events if _communicates(each) and each.name == "foreach_all_gather")

    assert not _buffers(paper.events) <= _buffers(without(real.events, sent))


def test_a_shard_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role))

    mutant = Run(without(paper.events, first), {})

    assert mutant.categories != real.categories


def test_the_last_rank_of_an_uneven_world_holds_less(runs: Both) -> None:
    first, last = (runs["uneven", rank][1].categories for rank in (0, 3))

    assert last["optimizer_state"] < first["optimizer_state"]


def _buffers(events: Sequence[Event]) -> Counter[tuple[str, int]]:
    """How often a collective of each kind took how many bytes."""
    sizes = _sizes(events)
    return Counter((each.name, sizes[each.block]) for each in events if _communicates(each))


def _communicates(event: Event) -> bool:
    return isinstance(event, Role) and event.category is Category.COMMUNICATION


def _sizes(events: Sequence[Event]) -> dict[int, int]:
    return {each.block: each.requested_bytes for each in events if isinstance(each, Alloc)}
