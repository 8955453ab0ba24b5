"""A job that keeps something with every step is told how fast it grows, and in which step its memory is full."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from whole_runs import events_of_whole_run

from planner.allocator.long_runs.growth import find_end, growth_of
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.events import Alloc, Event, Free, Mark, Origin, Phase
from planner.job.loading import load_yaml
from planner.planning.plan import plan_job
from planner.report.verdict_text import verdict_sentences
from planner.tracing.job_program import trace
from planner.units import GIB, MIB

SPEC = f"""
model:
  factory: "keeping_models:%s"
  factory_path: {Path(__file__).parent}
train: {{sequence_length: 256, optimizer: {{name: SGD}}, iterations: %d}}
cluster: {{gpu: {{total_bytes: 2GiB, arch: sm_90}}}}
"""


def test_the_memory_is_full_in_the_step_in_which_the_whole_run_is_out_of_memory() -> None:
    room = 160 * MIB
    whole = events_of_whole_run(load_yaml(SPEC % ("keeps_outputs", 60)))
    failed = replay(whole, capacity_bytes=room).out_of_memory
    assert failed is not None
    last = [each for each in whole[: failed.event_index] if isinstance(each, Mark)][-1]

    events = trace(load_yaml(SPEC % ("keeps_outputs", 7))).written_out()
    growth = growth_of(events, Rules())

    assert growth is not None
    assert (growth.bytes_per_step, growth.origin.module) == (256 * 3000 * 4, "head")
    found = find_end(events, growth, Rules(), room)
    assert found is not None
    assert (found.step, found.phase, found.exact) == (last.iteration, last.phase, True)


def test_a_plan_says_what_its_steps_keep_and_until_when() -> None:
    found = plan_job(load_yaml(SPEC % ("keeps_outputs", 7))).plan
    (statement,) = found.rank_classes
    (moment,) = statement.moments
    assert moment.name == "kept with every step"
    assert moment.sentence.startswith(
        "Each step keeps 2.93 MiB that it never frees, most of it by aten.mm of head (256 × 3000 float32)"
    )
    assert f"are full in step {moment.iteration} (replayed)." in moment.sentence
    assert verdict_sentences(found)[0].startswith(
        f"Fits until step {moment.iteration}: each step keeps 2.93 MiB on rank"
    )


@pytest.mark.parametrize(("model", "kept"), [("keeps_nothing", 0), ("keeps_means", 512)])
def test_a_kept_number_is_a_block_a_step_and_a_steady_job_keeps_nothing(model: str, kept: int) -> None:
    growth = growth_of(trace(load_yaml(SPEC % (model, 7))).written_out(), Rules())
    assert (growth.bytes_per_step if growth else 0) == kept


def steps(kept: Sequence[int], freed_after: int = 0) -> list[Event]:
    """A step keeps one block of each of these sizes (0: none), and gives it up so many steps later (0: never)."""
    events: list[Event] = []
    for number, size in enumerate([*kept, 0], 1):
        events.append(Mark(Phase.FORWARD, number))
        if size:
            events.append(Alloc(number, size, origin=Origin(op="aten.mm")))
        if freed_after and number > freed_after and kept[number - 1 - freed_after]:
            events.append(Free(number - freed_after))
    return events


def test_what_the_next_step_gives_up_or_a_later_one_is_not_kept() -> None:
    assert growth_of(steps([MIB] * 10), Rules()) is not None
    assert growth_of(steps([MIB] * 10, freed_after=1), Rules()) is None
    assert growth_of(steps([MIB] * 10, freed_after=3), Rules()) is None


def test_steps_that_keep_nothing_now_and_then_do_not_grow() -> None:
    assert growth_of(steps([MIB, MIB, MIB, 0, MIB, MIB, 0, MIB]), Rules()) is None
    assert growth_of(steps([MIB] * 4), Rules()) is None, "too few steps to tell"


def test_where_replaying_takes_too_long_the_rest_is_reckoned() -> None:
    events = steps([512] * 10)
    growth = growth_of(events, Rules())
    assert growth is not None
    found = find_end(events, growth, Rules(), GIB)
    assert found is not None
    assert not found.exact
    assert found.step == pytest.approx(GIB / 512, rel=0.01)
