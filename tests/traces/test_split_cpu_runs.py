"""Tensor parallelism for real, over gloo, beside the same ranks traced on paper with the kernels of a CPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.events import Alloc, Category, Event, Role

_HERE = Path(__file__).parent


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{__name__}_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


CASES, RUNS = _module("split_cases"), _module("cpu_runs")
Run = RUNS.Run
EVERY_RANK = [(job.metadata.name, rank) for job in CASES.PAIRS for rank in (0, 1)]
Both = dict[tuple[str, int], tuple[Any, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return dict(RUNS.both_ways(tmp_path_factory.mktemp("runs"), [(CASES.PAIRS, 2)]))


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_the_real_run_can_be_believed(runs: Both, name: str, rank: int) -> None:
    truth = runs[name, rank][1].measurement.truth

    assert truth.believed, truth


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_parts_gradients_and_optimizer_state_are_exact(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert paper.categories == real.categories


@pytest.mark.parametrize(("name", "rank"), EVERY_RANK)
def test_every_phase_peaks_within_half_a_percent_of_the_whole(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert paper.peak == pytest.approx(real.peak, rel=RUNS.TOLERANCE)
    assert RUNS.peaks_that_differ(paper, real) == {}


@pytest.mark.parametrize("name", ["split", "split-tokens", "split-llama"])
def test_what_one_collective_returned_less_is_noticed(runs: Both, name: str) -> None:
    paper, real = runs[name, 0]
    returned = _largest_at_peak(paper.events, Category.COMMUNICATION)

    mutant = Run(RUNS.without(paper.events, returned), {})

    assert RUNS.peaks_that_differ(mutant, real) != {}


def test_a_part_of_a_parameter_less_is_noticed(runs: Both) -> None:
    paper, real = runs["split", 0]
    first = next(each.block for each in paper.events if isinstance(each, Role))

    mutant = Run(RUNS.without(paper.events, first), {})

    assert mutant.categories != real.categories


def test_logits_that_are_split_take_less(runs: Both) -> None:
    whole, parts = runs["split", 0][1], runs["split-logits", 0][1]

    assert parts.peak < whole.peak


def test_the_last_rank_of_a_vocabulary_that_does_not_divide_holds_less(runs: Both) -> None:
    first, last = (runs["split-tied", rank][1].categories for rank in (0, 1))

    assert last["parameter"] < first["parameter"]


def _largest_at_peak(events: Sequence[Event], category: Category) -> int:
    sizes = {each.block: each.requested_bytes for each in events if isinstance(each, Alloc)}
    of_category = [each.block for each in events if isinstance(each, Role) and each.category is category]
    return max(of_category, key=lambda block: sizes[block])
