"""The run of a spec whose batches differ in length, composed of a few of its steps, does for the allocator what the
whole run does on the paper GPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from whole_runs import events_of_whole_run

from planner.allocator.long_runs.drawn_batches import compose_batches
from planner.allocator.long_runs.replayed_run import PartedRun
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.allocator.timeline import Timeline
from planner.events import Event, Mark
from planner.job.loading import load_yaml
from planner.job.schema import Job
from planner.tracing.job_program import trace
from planner.units import MIB

CASES = {
    "percentiles": "sequence_length: {p50: 300, p99: 700, max: 1024, steps: 24}",
    "histogram": "sequence_length: {histogram: {128: 0.5, 512: 0.3, 1k: 0.2}, steps: 24}",
    "padded": "sequence_length: {p50: 300, max: 1024, pad_to_multiple_of: 64, steps: 24}",
    "accumulated": "sequence_length: {p50: 300, max: 1024, steps: 12}, gradient_accumulation_steps: 3",
}


def job_of(train: str) -> Job:
    return load_yaml(f"""
model: {{decoder: {{layers: 1, hidden: 256, heads: 2, kv_heads: 2, ffn: 512, vocab: 3000}}}}
train: {{micro_batch_size: 2, optimizer: {{name: SGD}}, {train}}}
cluster: {{gpu: H100-SXM-80GB}}
""")


def composed(job: Job) -> PartedRun:
    found = trace(job)
    (loader,) = found.drawn
    return compose_batches(
        found.written_out(),
        loader.given,
        loader.order,
        micro_batches=job.train.gradient_accumulation_steps,
    )


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest) -> tuple[PartedRun, Sequence[Event]]:
    """Put together, and run from the first step to the last."""
    job = job_of(CASES[request.param])
    return composed(job), events_of_whole_run(job)


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


def peaks_of(parted: PartedRun, rules: Rules) -> list[tuple[int, int]]:
    found = parted.replay(rules)
    grown = {each.step: each.reserved_bytes for each in found.growths}
    reserved = accumulate((grown.get(step, 0) for step in range(1, len(found.allocated_bytes) + 1)), max)
    return list(zip(found.allocated_bytes, reserved, strict=True))


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"])
def test_every_step_peaks_and_reserves_as_in_the_whole_run(both: tuple[PartedRun, Sequence[Event]], conf: str) -> None:
    parted, whole = both
    rules = Rules.from_conf(conf)
    assert peaks_of(parted, rules) == peaks(whole, replay(whole, rules))


def test_of_an_accumulation_of_more_than_three_the_first_two_steps_are_shorter() -> None:
    job = job_of("sequence_length: {p50: 300, max: 1024, steps: 12}, gradient_accumulation_steps: 4")
    whole = events_of_whole_run(job)
    assert peaks_of(composed(job), Rules())[2:] == peaks(whole, replay(whole))[2:]


def test_the_memory_runs_out_in_the_same_step_or_is_released_as_often(both: tuple[PartedRun, Sequence[Event]]) -> None:
    parted, whole = both
    highest = max(replay(whole).reserved_bytes)
    for capacity in (highest - 4 * MIB, highest - 24 * MIB, highest // 2):
        expected = replay(whole, capacity_bytes=capacity)
        found = parted.replay(Rules(), capacity)
        if expected.out_of_memory is None:
            assert (found.out_of_memory_step, found.cache_releases) == (0, expected.cache_releases)
        else:
            marks = [each for each in whole[: expected.out_of_memory.event_index] if isinstance(each, Mark)]
            assert (found.out_of_memory_step, found.out_of_memory_phase) == (marks[-1].iteration, marks[-1].phase)


def test_thousands_of_steps_of_few_lengths_are_known_from_few() -> None:
    job = job_of("sequence_length: {histogram: {128: 0.5, 512: 0.3, 1k: 0.2}, steps: 5000}")

    found = composed(job).replay(Rules())

    assert len(found.allocated_bytes) == 5000
    assert found.replayed < 40
