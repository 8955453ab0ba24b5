"""Compiled steps that Inductor's C++ code really ran, beside the same steps compiled on paper for a CPU."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher

import compiled_cases as cases
import pytest
import recorded_cpu_runs
import soak
from cpu_runs import Both, Run, assert_alike, both_ways, peaks_that_differ, without

from planner.events import Alloc, Mark, Phase

_RANDOM_STATE_BYTES = 5056
"""Of a CPU's generator, as its get_state gives it (torch 2.13, aten/src/ATen/CPUGeneratorImpl.cpp)."""
CASES = cases.COMPILED if recorded_cpu_runs.MODE else cases.COMPILED[: soak.share(len(cases.COMPILED), 1)]
NAMES = [each.metadata.name for each in CASES]
pytestmark = [pytest.mark.soak] if soak.IS_WHOLE else []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(CASES, 1)], "compiled")


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_step_takes_what_it_took(runs: Both, name: str) -> None:
    paper, real = runs[name, 0]
    assert_alike(paper, real)
    # Counters of steps are on the host, and for a CPU that is the device: four bytes for each parameter.
    assert abs(paper.peak - real.peak) < 1024


@pytest.mark.parametrize("name", NAMES)
def test_once_compiled_allocations_come_in_the_order_of_the_real_run(runs: Both, name: str) -> None:
    """All that is planned comes in the order in which it came; what else a CPU takes is known."""
    paper, real = (_settled(each) for each in runs[name, 0])
    sizes = [[each.requested_bytes for each in allocations] for allocations in (paper, real)]
    steps = SequenceMatcher(None, *sizes, autojunk=False).get_opcodes()
    assert {step for step, *_ in steps} <= {"equal", "insert"}
    more = [each for step, _, _, first, after in steps if step == "insert" for each in real[first:after]]
    assert [each for each in more if not _is_of_a_cpu(each)] == []


def test_what_a_graph_saves_less_is_noticed(runs: Both) -> None:
    paper, real = runs["decoder-blocks", 0]
    largest = max((each for each in paper.events if isinstance(each, Alloc)), key=lambda each: each.requested_bytes)
    mutant = replace(paper, events=without(paper.events, largest.block))
    assert peaks_that_differ(mutant, real) != {}


def _settled(run: Run) -> list[Alloc]:
    """What is allocated from the second iteration on: in the first, a compiler takes memory of its own on a CPU. Of
    smaller ones counters of steps differ, which are on the host."""
    events = run.events[run.events.index(Mark(Phase.FORWARD, 2)) :]
    return [each for each in events if isinstance(each, Alloc) and each.requested_bytes > 1024]


def _is_of_a_cpu(allocation: Alloc) -> bool:
    """What no GPU takes: what attention's kernel computes in, the targets that are drawn, and random numbers' state.

    A compiler reads and clones it twice for each graph that it compiles (evaluation's, in the second iteration),
    and not at all for one in its cache (torch 2.13, torch/_dynamo/utils.py, preserve_rng_state).
    """
    operator = allocation.origin.op if allocation.origin is not None else ""
    drawn = operator in ("aten.randn", "aten.randint")
    is_state = operator in ("", "aten.clone") and allocation.requested_bytes == _RANDOM_STATE_BYTES
    return operator.startswith("aten._scaled_dot_product_flash_attention_for_cpu") or drawn or is_state
