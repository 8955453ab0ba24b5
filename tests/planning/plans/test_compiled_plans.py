"""What the report says of a compiled job."""

from __future__ import annotations

import json

import pytest

from planner.job.loading import load_yaml
from planner.job.schema import Job
from planner.planning.plan import PlanningResult, plan_job
from planner.planning.without_compile import add_eager
from planner.report.statement import from_json, to_json

_JOB = """
model: {decoder: {layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 160, vocab: 2001}}
train: {micro_batch_size: 32, sequence_length: 128, precision: bf16_autocast, compile: [model, loss], iterations: 2}
cluster: {gpu: H100-SXM-80GB}
"""
_EAGER = _JOB.replace("compile: [model, loss], ", "")


def planned_both_ways(job: Job) -> PlanningResult:
    return add_eager(plan_job(job))


@pytest.fixture(scope="module")
def planned() -> PlanningResult:
    return planned_both_ways(load_yaml(_JOB))


def test_it_says_what_was_compiled_and_what_was_assumed(planned: PlanningResult) -> None:
    notes = " ".join(planned.plan.notes)
    assert "Compiled on paper by inductor" in notes
    assert "faster padded" in notes


def test_it_says_what_the_eager_step_would_take_and_of_what(planned: PlanningResult) -> None:
    said = planned.plan.without_compile
    assert said is not None
    assert said.sentence in planned.plan.notes
    assert " more; at the peak: " in said.sentence
    assert "saved activations +" in said.sentence
    peak, eager = planned.plan.rank_classes[0].peak, plan_job(load_yaml(_EAGER)).plan.rank_classes[0].peak
    assert said.device_bytes == eager.device_bytes
    assert sum(said.more_at_peak.values()) == eager.allocated_bytes - peak.allocated_bytes


def test_the_plans_document_says_it_too_and_comes_back_with_it(planned: PlanningResult) -> None:
    document = to_json(planned.plan)
    assert document["without_compile"]["sentence"] in planned.plan.notes
    assert from_json(json.loads(json.dumps(document))) == planned.plan


def test_no_sentence_speaks_of_a_job_that_is_not_compiled() -> None:
    eager = planned_both_ways(load_yaml(_EAGER))
    assert "ompile" not in " ".join(eager.plan.notes)
    assert "without_compile" not in to_json(eager.plan)
