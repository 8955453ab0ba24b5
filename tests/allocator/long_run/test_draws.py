"""The batches of a run are drawn from the distribution of its sequences, the same ones every time."""

from __future__ import annotations

import pytest

from planner.job.loading import bundle, load_bundle, load_yaml
from planner.job.printing import job_yaml, short_yaml
from planner.job.sampled_runs import draw_steps, steps_for_the_longest, traced_lengths
from planner.job.schema import Job

HISTOGRAM = "{histogram: {128: 0.6, 512: 0.3, 1k: 0.1}}"


def job_of(lengths: str, train: str = "") -> Job:
    return load_yaml(f"""
model: {{decoder: {{layers: 1, hidden: 8, heads: 1, kv_heads: 1, ffn: 8, vocab: 8}}}}
train: {{sequence_length: {lengths}{train}}}
cluster: {{gpu: H100-SXM-80GB}}
""")


def shares(job: Job) -> dict[int, float]:
    drawn = [length for step in draw_steps(job.train) for length in step]
    return {length: drawn.count(length) / len(drawn) for length in sorted(set(drawn))}


def test_a_histogram_is_drawn_as_often_as_it_says() -> None:
    assert shares(job_of(HISTOGRAM)) == pytest.approx({128: 0.6, 512: 0.3, 1024: 0.1}, abs=0.03)


def test_a_batch_is_as_long_as_the_longest_of_its_sequences() -> None:
    found = shares(job_of(HISTOGRAM, ", micro_batch_size: 4"))
    assert found == pytest.approx({128: 0.6**4, 512: 0.9**4 - 0.6**4, 1024: 1 - 0.9**4}, abs=0.03)


def test_percentiles_are_met_and_batches_padded() -> None:
    job = job_of("{min: 10, p50: 100, p90: 500, max: 1024, pad_to_multiple_of: 8}")
    drawn = [length for step in draw_steps(job.train) for length in step]
    assert sum(length <= 104 for length in drawn) / len(drawn) == pytest.approx(0.5, abs=0.04)
    assert sum(length <= 504 for length in drawn) / len(drawn) == pytest.approx(0.9, abs=0.03)
    assert {length % 8 for length in drawn} == {0}
    assert 16 <= min(drawn) <= max(drawn) <= 1024


def test_the_same_seed_draws_the_same_run_and_another_another() -> None:
    one, same = job_of(HISTOGRAM), job_of(HISTOGRAM)
    other = job_of("{histogram: {128: 0.6, 512: 0.3, 1k: 0.1}, seed: 1}")
    assert draw_steps(one.train) == draw_steps(same.train) != draw_steps(other.train)


def test_the_longest_batch_comes_as_often_as_its_share() -> None:
    assert steps_for_the_longest(job_of(HISTOGRAM).train) == pytest.approx(10)
    assert steps_for_the_longest(job_of(HISTOGRAM, ", micro_batch_size: 4").train) == pytest.approx(1 / (1 - 0.9**4))
    assert steps_for_the_longest(job_of(HISTOGRAM).train, ranks=8) == pytest.approx(1 / (1 - 0.9**8))
    assert steps_for_the_longest(job_of("{p99: 1000, max: 2000, p50: 10}").train) == pytest.approx(100_000)


def test_given_batches_are_the_run() -> None:
    job = job_of("{batches: [5, 9, 7, 9]}", ", gradient_accumulation_steps: 2")
    assert (draw_steps(job.train), job.train.sequence_length) == (((5, 9), (7, 9)), 9)
    assert steps_for_the_longest(job.train) == 1


def test_a_shorter_sequence_length_beside_a_distribution_cuts_it() -> None:
    job = job_of("256", ", lengths: {histogram: {128: 0.6, 512: 0.3, 1k: 0.1}}")
    assert shares(job) == pytest.approx({128: 0.6, 256: 0.4}, abs=0.03)


def test_few_lengths_are_all_traced_and_of_many_some_with_both_ends() -> None:
    assert traced_lengths(job_of(HISTOGRAM).train) == (128, 512, 1024)
    many = job_of("{p50: 100, max: 1024}")
    drawn = {length for step in draw_steps(many.train) for length in step}
    found = traced_lengths(many.train)
    assert (len(found), found[0], found[-1]) == (7, min(drawn), 1024)
    assert set(found[:-1]) <= drawn


@pytest.mark.parametrize("lengths", [HISTOGRAM, "{p50: 100, p99: 500, max: 1024}", "{batches: [5, 9]}"])
def test_what_is_printed_reads_as_the_same_job(lengths: str) -> None:
    job = job_of(lengths)
    assert [load_yaml(job_yaml(job)), load_yaml(short_yaml(job)), load_bundle(bundle(job))] == [job] * 3
