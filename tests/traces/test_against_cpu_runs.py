"""Real steps on a CPU, seen by torch's profiler, beside the same steps traced on paper with the kernels of a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plain_cases as cases
import pytest
from cpu_runs import TOLERANCE, Run, both_ways, peaks_that_differ, without

from planner.events import Alloc, Category, Event, Free, Mark, Role

_MASK_BYTES = 256 * 512 * 4


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
def test_the_real_run_can_be_believed(runs: Runs, name: str) -> None:
    """Two runs agree, and what was allocated and not freed is what live tensors hold."""
    measurement = runs.real[name].measurement
    assert measurement is not None
    assert measurement.truth is not None
    assert measurement.truth.believed, measurement.truth


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_parameters_gradients_buckets_and_optimizer_state_are_exact(runs: Runs, name: str) -> None:
    assert runs.paper[name].categories == runs.real[name].categories


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_the_peak_is_within_half_a_percent(runs: Runs, name: str) -> None:
    assert runs.paper[name].peak == pytest.approx(runs.real[name].peak, rel=TOLERANCE)


@pytest.mark.parametrize("name", ALONE + REPLICATED)
def test_every_phase_peaks_within_half_a_percent_of_the_whole(runs: Runs, name: str) -> None:
    assert peaks_that_differ(runs.paper[name], runs.real[name]) == {}


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


def _alive_at_peak(events: Sequence[Event]) -> dict[int, Alloc]:
    """The blocks that are alive when the requested bytes are at their highest."""
    alive: dict[int, Alloc] = {}
    best: dict[int, Alloc] = {}
    now = highest = 0
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event
            now += event.requested_bytes
        elif isinstance(event, Free):
            now -= alive.pop(event.block).requested_bytes
        if now > highest:
            highest, best = now, dict(alive)
    return best


def _of_category(events: Sequence[Event], category: Category) -> list[int]:
    return [each.block for each in events if isinstance(each, Role) and each.category is category]


def test_one_bucket_less_is_noticed(runs: Runs) -> None:
    events = runs.paper["ddp-copy"].events
    rebuilt = _of_category(events, Category.BUCKET)[-1]
    mutant = Run(without(events, rebuilt), {})
    assert peaks_that_differ(mutant, runs.real["ddp-copy"]) != {}


def test_a_reducer_without_its_bucket_is_noticed(runs: Runs) -> None:
    buckets = _of_category(runs.paper["ddp-static"].events, Category.BUCKET)
    events = [each for each in runs.paper["ddp-static"].events if getattr(each, "block", None) not in buckets]
    assert Run(events, {}).categories != runs.real["ddp-static"].categories


def test_one_mask_less_is_noticed(runs: Runs) -> None:
    events = runs.paper["dropouts"].events
    masks = [each.block for each in _alive_at_peak(events).values() if each.requested_bytes == _MASK_BYTES]
    mutant = Run(without(events, masks[0]), {})
    assert mutant.peak != pytest.approx(runs.real["dropouts"].peak, rel=TOLERANCE)


def test_one_workspace_less_is_noticed(runs: Runs) -> None:
    """A convolution's columns are the largest block of that step."""
    events = runs.paper["convolutions"].events
    columns = max(_alive_at_peak(events).values(), key=lambda each: each.requested_bytes)
    mutant = Run(without(events, columns.block), {})
    assert mutant.peak != pytest.approx(runs.real["convolutions"].peak, rel=TOLERANCE)


def test_marks_are_where_they_were(runs: Runs) -> None:
    for name in ALONE:
        paper = [each for each in runs.paper[name].events if isinstance(each, Mark)]
        assert paper == [each for each in runs.real[name].events if isinstance(each, Mark)]
