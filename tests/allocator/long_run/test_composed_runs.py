"""A run put together from a few traced steps does for the allocator what the whole run does on the paper GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from whole_runs import events_of_whole_run

from planner.allocator.long_runs.replayed_run import ComposedRun, compose
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Mark, Phase
from planner.job.loading import load_yaml
from planner.job.schema import Job
from planner.tracing.job_program import trace
from planner.units import MIB

CASES = {
    "percentiles": "sequence_length: {p50: 300, p99: 700, max: 1024, steps: 24}",
    "histogram": "sequence_length: {histogram: {128: 0.5, 512: 0.3, 1k: 0.2}, steps: 24}",
    "padded": "sequence_length: {p50: 300, max: 1024, pad_to_multiple_of: 64, steps: 24}",
    "accumulated": "sequence_length: {p50: 300, max: 1024, steps: 8}, gradient_accumulation_steps: 3",
}


def job_of(train: str) -> Job:
    return load_yaml(f"""
model: {{decoder: {{layers: 1, hidden: 256, heads: 2, kv_heads: 2, ffn: 512, vocab: 3000}}}}
train: {{micro_batch_size: 2, optimizer: {{name: SGD}}, {train}}}
cluster: {{gpu: H100-SXM-80GB}}
""")


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest) -> tuple[ComposedRun, Sequence[Event]]:
    """Put together, and run from the first step to the last."""
    job = job_of(CASES[request.param])
    return compose(job, trace(job).written_out()), events_of_whole_run(job)


def peaks(events: Sequence[Event], timeline: Timeline) -> list[tuple[int, int]]:
    """Of each step the highest allocated bytes, and all that was ever reserved until its end."""
    starts: dict[int, int] = {}
    for index, event in enumerate(events):
        if isinstance(event, Mark) and event.iteration:
            starts.setdefault(event.iteration, index)
    edges = [0, *list(starts.values())[1:], len(timeline.allocated_bytes)]
    return [
        (max(timeline.allocated_bytes[first:after]), max(timeline.reserved_bytes[:after]))
        for first, after in pairwise(edges)
    ]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"])
def test_every_step_peaks_and_reserves_as_in_the_whole_run(
    both: tuple[ComposedRun, Sequence[Event]], conf: str
) -> None:
    composed, whole = both
    rules = Rules.from_conf(conf)
    expected = peaks(whole, replay(whole, rules))

    found = composed.replay(rules)

    drawn = composed.drawn
    reserved = [
        max((each.reserved_bytes for each in found.growths if each.step <= number), default=0)
        for number in range(1, drawn + 1)
    ]
    assert list(zip(found.allocated_bytes[:drawn], reserved, strict=True)) == expected


def test_the_memory_runs_out_in_the_same_step_or_is_released_as_often(
    both: tuple[ComposedRun, Sequence[Event]],
) -> None:
    composed, whole = both
    highest = max(replay(whole).reserved_bytes)
    for capacity in (highest - 4 * MIB, highest - 24 * MIB, highest // 2):
        expected = replay(whole, capacity_bytes=capacity)
        found = composed.replay(Rules(), capacity)
        if expected.out_of_memory is None and len(composed.steps) == composed.drawn:
            assert (found.out_of_memory_step, found.cache_releases) == (0, expected.cache_releases)
        if expected.out_of_memory is not None:
            marks = [each for each in whole[: expected.out_of_memory.event_index] if isinstance(each, Mark)]
            assert (found.out_of_memory_step, found.out_of_memory_phase) == (marks[-1].iteration, marks[-1].phase)


def test_thousands_of_steps_of_few_lengths_are_known_from_few() -> None:
    job = job_of("sequence_length: {histogram: {128: 0.5, 512: 0.3, 1k: 0.2}, steps: 20000}")

    found = compose(job, trace(job).written_out()).replay(Rules())

    assert len(found.allocated_bytes) == 20000
    assert found.replayed < 40


def test_the_worst_step_alone_is_a_run_of_its_own_with_the_peak_of_the_whole() -> None:
    job = job_of("sequence_length: {p50: 300, max: 1024, steps: 24}, gradient_accumulation_steps: 3")
    composed = compose(job, trace(job).written_out())
    found = composed.replay(Rules())

    alone = composed.worst_step_alone(found.worst_step)

    timeline = replay(alone)
    marks = [each for each in alone if isinstance(each, Mark)]
    assert max(timeline.requested_bytes) == max(found.requested_bytes)
    assert {each.iteration for each in marks} == {1, 2, found.worst_step}
    assert marks[-1].phase is Phase.OPTIMIZER_STEP
