"""fully_shard for real, over gloo, beside the same ranks traced on paper with the kernels of a CPU."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.events import Alloc, Category, Event, Free, Role

_HERE = Path(__file__).parent


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


CASES, RUNS = _module("sharded_cases"), _module("cpu_runs")
Run = RUNS.Run
WORLDS = ((CASES.PAIRS, 2), (CASES.FOURS, 4))
EVERY_RANK = [(job.metadata.name, rank) for jobs, world in WORLDS for job in jobs for rank in range(world)]
Both = dict[tuple[str, int], tuple[Any, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """By name and rank: on paper, for real."""
    folder = tmp_path_factory.mktemp("runs")
    real: dict[tuple[str, int], Any] = {}
    for jobs, world in WORLDS:
        here = folder / str(world)
        here.mkdir()
        ranks = [RUNS.start("real", here, jobs, rank, str(here / "meeting"), world) for rank in range(world)]
        for rank, finish in enumerate(ranks):
            real |= {(name, rank): run for name, run in finish().items()}
    traced: dict[tuple[str, int], Any] = {}
    most = max(world for _, world in WORLDS)
    papers = [RUNS.start("paper", folder, _jobs_with(rank), rank) for rank in range(most)]
    for rank, finish in enumerate(papers):
        traced |= {(name, rank): run for name, run in finish().items()}
    assert traced.keys() == real.keys()
    return {key: (traced[key], real[key]) for key in real}


def _jobs_with(rank: int) -> list[Any]:
    return [job for jobs, world in WORLDS for job in jobs if rank < world]


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_the_real_run_can_be_believed(runs: Both, name: str, rank: int) -> None:
    truth = runs[name, rank][1].measurement.truth

    assert truth.believed, truth


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_shards_gradients_and_optimizer_state_are_exact(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert paper.categories == real.categories


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_every_phase_peaks_within_half_a_percent_of_the_whole(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert paper.peak == pytest.approx(real.peak, rel=RUNS.TOLERANCE)
    assert RUNS.peaks_that_differ(paper, real) == {}


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_every_gather_and_reduction_takes_the_buffers_that_it_takes_on_paper(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    # A copy that a thread of gloo makes of a buffer may be seen as well.
    assert Counter() != _buffers(paper.events) <= _buffers(real.events)


def test_a_gathered_parameter_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    gathered = _largest_at_peak(paper.events, "(gathered)")

    mutant = Run(RUNS.without(paper.events, gathered), {})

    assert RUNS.peaks_that_differ(mutant, real) != {}


def test_a_buffer_of_a_gather_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    sent = next(each.block for each in real.events if _communicates(each) and each.name == "foreach_all_gather")

    assert not _buffers(paper.events) <= _buffers(RUNS.without(real.events, sent))


def test_a_shard_less_is_noticed(runs: Both) -> None:
    paper, real = runs["resharded", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role))

    mutant = Run(RUNS.without(paper.events, first), {})

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


def _largest_at_peak(events: Sequence[Event], named: str) -> int:
    sizes = _sizes(events)
    candidates = {each.block for each in events if isinstance(each, Role) and named in each.name}
    return max(_alive_at_peak(events) & candidates, key=lambda block: sizes[block])


def _alive_at_peak(events: Sequence[Event]) -> set[int]:
    sizes, alive = _sizes(events), set[int]()
    held = most = 0
    at_peak: set[int] = set()
    for each in events:
        if isinstance(each, Alloc):
            alive.add(each.block)
            held += sizes[each.block]
        elif isinstance(each, Free):
            alive.remove(each.block)
            held -= sizes[each.block]
        if held > most:
            most, at_peak = held, set(alive)
    return at_peak


def _sizes(events: Sequence[Event]) -> dict[int, int]:
    return {each.block: each.requested_bytes for each in events if isinstance(each, Alloc)}
