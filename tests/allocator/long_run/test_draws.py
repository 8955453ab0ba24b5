"""The batches of a run are drawn from the distribution of its sequences, the same ones every time."""

from __future__ import annotations

import pytest

from planner.job.loading import bundle, load_bundle, load_yaml
from planner.job.printing import job_yaml, short_yaml
from planner.job.sampled_runs import draw_batches
from planner.job.schema import Job

HISTOGRAM = "{histogram: {128: 0.6, 512: 0.3, 1k: 0.1}}"


def job_of(lengths: str, train: str = "") -> Job:
    return load_yaml(f"""
model: {{decoder: {{layers: 1, hidden: 8, heads: 1, kv_heads: 1, ffn: 8, vocab: 8}}}}
train: {{sequence_length: {lengths}{train}}}
cluster: {{gpu: H100-SXM-80GB}}
""")


def shares(job: Job) -> dict[int, float]:
    drawn = draw_batches(job.train)
    return {length: drawn.count(length) / len(drawn) for length in sorted(set(drawn))}


def test_a_histogram_is_drawn_as_often_as_it_says() -> None:
    assert shares(job_of(HISTOGRAM)) == pytest.approx({128: 0.6, 512: 0.3, 1024: 0.1}, abs=0.03)


def test_a_batch_is_as_long_as_the_longest_of_its_sequences() -> None:
    found = shares(job_of(HISTOGRAM, ", micro_batch_size: 4"))
    assert found == pytest.approx({128: 0.6**4, 512: 0.9**4 - 0.6**4, 1024: 1 - 0.9**4}, abs=0.03)


def test_percentiles_are_met_and_batches_padded() -> None:
    job = job_of("{min: 10, p50: 100, p90: 500, max: 1024, pad_to_multiple_of: 8}")
    drawn = draw_batches(job.train)
    assert sum(length <= 104 for length in drawn) / len(drawn) == pytest.approx(0.5, abs=0.04)
    assert sum(length <= 504 for length in drawn) / len(drawn) == pytest.approx(0.9, abs=0.03)
    assert {length % 8 for length in drawn} == {0}
    assert 16 <= min(drawn) <= max(drawn) <= 1024


def test_the_same_seed_draws_the_same_run_and_another_another() -> None:
    one, same = job_of(HISTOGRAM), job_of(HISTOGRAM)
    other = job_of("{histogram: {128: 0.6, 512: 0.3, 1k: 0.1}, seed: 1}")
    assert draw_batches(one.train) == draw_batches(same.train) != draw_batches(other.train)


def test_given_batches_are_the_run() -> None:
    job = job_of("{batches: [5, 9, 7, 9]}", ", gradient_accumulation_steps: 2")
    assert (draw_batches(job.train), job.train.sequence_length) == ((5, 9, 7, 9), 9)


def test_batches_that_make_no_whole_step_are_left_out() -> None:
    job = job_of("{batches: [5, 9, 7, 9, 6]}", ", gradient_accumulation_steps: 2")
    assert draw_batches(job.train) == (5, 9, 7, 9)


def test_a_step_of_the_longest_ends_a_run_that_has_drawn_none() -> None:
    lengths = "{p50: 10, p99: 1000, max: 20000, steps: 30}"
    drawn = draw_batches(job_of(lengths, ", gradient_accumulation_steps: 2").train)
    assert (len(drawn), drawn[-2:]) == (62, (20_000, 20_000))
    assert max(drawn[:-2]) < 20_000


def test_a_shorter_sequence_length_beside_a_distribution_cuts_it() -> None:
    job = job_of("256", ", lengths: {histogram: {128: 0.6, 512: 0.3, 1k: 0.1}}")
    assert shares(job) == pytest.approx({128: 0.6, 256: 0.4}, abs=0.03)


@pytest.mark.parametrize("lengths", [HISTOGRAM, "{p50: 100, p99: 500, max: 1024}", "{batches: [5, 9]}"])
def test_what_is_printed_reads_as_the_same_job(lengths: str) -> None:
    job = job_of(lengths)
    assert [load_yaml(job_yaml(job)), load_yaml(short_yaml(job)), load_bundle(bundle(job))] == [job] * 3
