"""Micro-batches that are told of rather than run, in examples whose parallelism no small job of another test has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import planner.paper  # noqa: F401 - before torch
from planner.job.loading import load_job
from planner.job.schema import Job
from planner.tracing import job_program as tracing
from tests.tracing.traces.test_folded_accumulation import in_order

EXAMPLES = Path(__file__).parents[3] / "examples"
LAYERS = ("num_hidden_layers", "n_layer")


@pytest.mark.parametrize(
    "name",
    ["deepseek-v2-lite-ep", "gpt2-xl-zero-1", "llama-3-8b-adamw-8bit"],
)
def test_every_event_is_as_if_all_had_been_run(name: str) -> None:
    accumulating = with_layers(load_job(EXAMPLES / f"{name}.yaml"), layers=2, steps=4)
    folded, run = (tracing.trace(accumulating, target="sm_90", shortened=each) for each in (True, False))

    assert folded.repeats
    assert in_order(folded.written_out()) == in_order(run.written_out())


def with_layers(job: Job, *, layers: int, steps: int) -> Job:
    content = {key: layers if key in LAYERS else value for key, value in (job.model.hf_config or {}).items()}
    return dataclasses.replace(
        job,
        model=dataclasses.replace(job.model, hf_config=content),
        train=dataclasses.replace(job.train, gradient_accumulation_steps=steps),
    )
