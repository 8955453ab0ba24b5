"""What the report says of a compiled job."""

from __future__ import annotations

import pytest

from planner.job.loading import load_yaml
from planner.search.answer import plan_and_advise

_JOB = """
model: {decoder: {layers: 2, hidden: 64, heads: 2, kv_heads: 2, ffn: 160, vocab: 2001}}
train: {micro_batch_size: 8, sequence_length: 128, precision: bf16_autocast, compile: [model, loss], iterations: 2}
cluster: {gpu: H100-SXM-80GB}
"""


@pytest.fixture(scope="module")
def notes() -> str:
    return " ".join(plan_and_advise(load_yaml(_JOB), with_eager=True).notes)


def test_it_says_what_was_compiled_and_what_was_assumed(notes: str) -> None:
    assert "Compiled on paper by inductor" in notes
    assert "faster padded" in notes


def test_it_says_what_the_eager_step_would_take_and_of_what(notes: str) -> None:
    said = notes[notes.index("Without torch.compile") :]
    assert " more; at the peak: " in said
    assert "activation +" in said


def test_no_sentence_speaks_of_a_job_that_is_not_compiled() -> None:
    eager = load_yaml(_JOB.replace("compile: [model, loss], ", ""))
    said = " ".join(plan_and_advise(eager, with_eager=True).notes)
    assert "ompile" not in said
