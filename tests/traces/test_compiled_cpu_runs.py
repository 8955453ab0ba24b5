"""Compiled steps that Inductor's C++ code really ran, beside the same steps compiled on paper for a CPU."""

from __future__ import annotations

from dataclasses import replace

import compiled_cases as cases
import pytest
from cpu_runs import Both, Run, assert_alike, both_ways, peaks_that_differ, without

from planner.events import Alloc, Mark, Phase

NAMES = [each.metadata.name for each in cases.COMPILED]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(cases.COMPILED, 1)], "compiled")


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_takes_what_it_took(runs: Both, name: str) -> None:
    paper, real = runs[name, 0]
    assert_alike(paper, real)
    # Counters of steps are on the host, and for a CPU that is the device: four bytes for each parameter.
    assert abs(paper.peak - real.peak) < 1024


@pytest.mark.parametrize("name", ["dropouts", "decoder-blocks"])
def test_once_compiled_large_allocations_come_in_the_order_of_the_real_run(runs: Both, name: str) -> None:
    paper, real = (_large(each) for each in runs[name, 0])
    assert paper == real


def test_what_a_graph_saves_less_is_noticed(runs: Both) -> None:
    paper, real = runs["decoder-blocks", 0]
    largest = max((each for each in paper.events if isinstance(each, Alloc)), key=lambda each: each.requested_bytes)
    mutant = replace(paper, events=without(paper.events, largest.block))
    assert peaks_that_differ(mutant, real) != {}


def _large(run: Run) -> list[int]:
    """Sizes in their order from the second iteration on: in the first, a compiler takes memory of its own on a CPU.

    Larger than what attention's kernel takes to compute in, which is not planned.
    """
    events = run.events[run.events.index(Mark(Phase.FORWARD, 2)) :]
    return [each.requested_bytes for each in events if isinstance(each, Alloc) and each.requested_bytes > 16384]
