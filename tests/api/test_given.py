"""A job as a Python call names it is the job that the command line makes of the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.api.given import read_job
from planner.errors import SpecError
from planner.job import named_jobs
from planner.job.loading import bundle, load_job
from planner.job.named_jobs import GivenJob
from planner.job.shorthand import REST, Shorthand

EXAMPLES = Path(__file__).parents[2] / "examples"
SPEC: dict[str, Any] = {
    "model": {"decoder": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 300}},
    "train": {"sequence_length": 32},
    "cluster": {"gpu": "H100-SXM-80GB"},
}


def test_a_file_a_mapping_and_a_job_are_the_same() -> None:
    path = EXAMPLES / "gpt2-xl.yaml"
    job = load_job(path)

    assert bundle(read_job(path).job) == bundle(job)
    assert bundle(read_job(str(path)).job) == bundle(job)
    assert bundle(read_job(bundle(job)).job) == bundle(job)
    assert bundle(read_job(job).job) == bundle(job)


def test_words_are_those_of_the_command_line() -> None:
    found = read_job(
        "Qwen/Qwen3-8B", gpus="4xH100", sequence_length="4k", micro_batch_size=2, fsdp=True,
        lora={"r": 16, "target": ["q_proj", "v_proj"]}, recompute=True,
    )  # fmt: skip
    words = Shorthand(
        gpus="4xH100", seq="4k", batch=2, fsdp=REST,
        lora="r=16,target=q_proj+v_proj", recompute="full",
    )  # fmt: skip
    said = named_jobs.read(GivenJob(named="Qwen/Qwen3-8B", words=words), Path())

    assert found.job == said.job
    assert found.taken == (*(f"taken: {each}" for each in said.supposed), *said.chosen)


def test_words_and_settings_stand_over_what_a_spec_says() -> None:
    settings = {"train.micro_batch_size": 4, "allocator.conf": "expandable_segments:True"}
    found = read_job(SPEC, settings=settings, gpus="2xH100", tp=2)

    assert found.job.train.micro_batch_size == 4
    assert found.job.allocator.conf == "expandable_segments:True"
    assert (found.job.parallel.tp.degree, found.job.cluster.gpus_per_node) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"job": SPEC, "sequence": 32}, "there is no word 'sequence' for a job"),
        ({"job": ""}, "'' names no job"),
        ({"job": {"model": {1, 2}}}, "the mapping is not a job"),
        ({"job": SPEC, "settings": {"train.micro_batch": 4}}, "micro_batch"),
        ({"job": SPEC, "micro_batch_size": "four"}, "four"),
        ({"job": SPEC, "fsdp": -1}, "-1"),
        ({"job": SPEC, "gpus": 0}, "0"),
    ],
)
def test_what_is_wrong_is_said_as_everywhere(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_job(arguments.pop("job"), **arguments)

    assert said in str(raised.value)
