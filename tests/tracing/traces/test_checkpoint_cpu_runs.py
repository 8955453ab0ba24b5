"""Checkpoints saved and loaded for real, over gloo, beside the same ranks traced on a GPU on paper."""

from __future__ import annotations

from collections.abc import Sequence

import checkpoint_cases as cases
import pytest
from cpu_runs import Both, Run, assert_exact, both_ways

from planner.events import Alloc, Event, Free, Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostEvent, HostFree
from planner.truth.measuring.measurement_lines import MeasuredPhase

WORLDS = ((cases.PAIRS, 2),)
BY_WAY_OF_THE_HOST = [("full-offloaded", 0), ("dcp-async", 0), ("dcp-async", 1)]
"""A CPU is its own host: what goes there from a device is there twice, or stays where it is."""
WITH_OBJECTS = [("dcp", 0), ("dcp", 1)]
"""Ranks agree on a plan, by tensors of bytes: those of absent peers do not come."""
EVERY_RANK = [(job.metadata.name, rank) for job in cases.PAIRS for rank in range(2)]
SAVES = (Phase.CHECKPOINT_SAVE, 2)
OBJECTS = 64 << 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), WORLDS, "checkpoints")


@pytest.mark.parametrize(("name", "rank"), [each for each in EVERY_RANK if each[0] != "dcp-async"])
def test_every_tensor_is_there_that_is_there_on_paper(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


@pytest.mark.parametrize(("name", "rank"), [(name, rank) for name in ("full", "sharded", "ddp") for rank in (0, 1)])
def test_a_save_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert peak_of(paper, SAVES) == peak_of(real, SAVES)


@pytest.mark.parametrize(("name", "rank"), BY_WAY_OF_THE_HOST)
def test_what_goes_to_the_host_is_what_a_cpu_takes_for_it(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]
    before = held_at(paper.events, SAVES)

    assert paper.categories == real.categories
    assert before + most_on_host(paper.host, SAVES) == pytest.approx(peak_of(real, SAVES), rel=2e-3)


@pytest.mark.parametrize(("name", "rank"), WITH_OBJECTS)
def test_saving_what_every_rank_has_takes_plans_alone(runs: Both, name: str, rank: int) -> None:
    paper, real = runs[name, rank]

    assert peak_of(paper, SAVES) == held_at(paper.events, SAVES)
    assert 0 <= peak_of(real, SAVES) - peak_of(paper, SAVES) < OBJECTS


def test_rank_0_alone_has_a_whole_checkpoint_on_its_host(runs: Both) -> None:
    full, _ = runs["full", 0]
    whole = 3 * full.categories["optimizer_state"]  # parameters, and half of each of two states of two ranks
    host = [most_on_host(runs["full-offloaded", rank][0].host, SAVES) for rank in (0, 1)]

    assert host == [pytest.approx(whole, rel=0.01), 0]  # without what is smaller than a page


def test_rank_0_alone_reads_the_checkpoint_that_it_sends(runs: Both) -> None:
    first, second = (peak_of(runs["resumed-broadcast", rank][1], (Phase.CHECKPOINT_LOAD, 0)) for rank in (0, 1))

    assert first > second


def peak_of(run: Run, phase: tuple[Phase, int]) -> int:
    found: MeasuredPhase = next(each for each in run.phases if (each.phase, each.iteration) == phase)
    return found.peak.requested_bytes


def held_at(events: Sequence[Event], phase: tuple[Phase, int]) -> int:
    """Bytes that are alive when a phase begins."""
    alive: dict[int, int] = {}
    for each in events:
        if isinstance(each, Mark) and (each.phase, each.iteration) == phase:
            break
        if isinstance(each, Alloc):
            alive[each.block] = each.requested_bytes
        elif isinstance(each, Free):
            alive.pop(each.block)
    return sum(alive.values())


def most_on_host(events: Sequence[HostEvent], phase: tuple[Phase, int]) -> int:
    """The most that is held for checkpoints in a phase."""
    held: dict[int, int] = {}
    most, inside = 0, False
    for each in events:
        if isinstance(each, Mark):
            inside = (each.phase, each.iteration) == phase
        elif isinstance(each, HostAlloc) and each.category is HostCategory.CHECKPOINT:
            held[each.block] = each.bytes
        elif isinstance(each, HostFree):
            held.pop(each.block, 0)
        most = max(most, sum(held.values())) if inside else most
    return most
