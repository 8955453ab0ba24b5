"""Runs of many steps on a CPU, seen by torch's profiler, beside the same runs put together from a few on paper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cpu_runs import without_libraries

from planner.allocator.long_runs.drawn_batches import compose_batches
from planner.allocator.rules import Rules
from planner.job.loading import load_yaml
from planner.job.schema import Job
from planner.tracing.job_program import trace
from planner.tracing.rank_trace import Trace

PERCENTILES = """
model: {decoder: {layers: 1, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 100}}
train:
  micro_batch_size: 2
  sequence_length: {p50: 64, p99: 100, max: 256, steps: STEPS}
  optimizer: {name: SGD, lr: 0.1, momentum: 0.9}
cluster: {gpu: null}
"""
ACCUMULATED = """
model: {decoder: {layers: 1, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 100}}
train:
  sequence_length: {histogram: {32: 0.6, 100: 0.3, 160: 0.1}, steps: 12}
  gradient_accumulation_steps: 4
  optimizer: {name: SGD, lr: 0.1}
cluster: {gpu: null}
"""


def really_run(spec: str) -> dict[str, Any]:
    root = Path(__file__).parents[3]
    program = root / "tests" / "tracing" / "programs" / "peaks_of_steps.py"
    environment = {**os.environ, "PYTHONPATH": str(root), "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), spec]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["net_bytes"] == found["live_bytes"], "a free was missed: the run tells nothing"
    return found


def peaks_by_step(measured: dict[str, Any]) -> list[int]:
    highest: dict[int, int] = {}
    for iteration, _, peak, _ in measured["phases"]:
        highest[iteration] = max(highest.get(iteration, 0), peak)
    return [highest[iteration] for iteration in sorted(highest) if iteration]


def traced(spec: str) -> tuple[Job, Trace]:
    job = load_yaml(spec)
    return job, trace(job, target="sm_90")


def put_together(spec: str) -> Sequence[int]:
    """The peak of each step."""
    job, found = traced(spec)
    (loader,) = found.drawn
    events = without_libraries(found.written_out())
    micro_batches = job.train.gradient_accumulation_steps
    composed = compose_batches(events, loader.given, loader.order, micro_batches=micro_batches)
    return list(composed.replay(Rules()).requested_bytes)


def in_order(peaks: Sequence[int]) -> list[int]:
    """Numbers of the steps, those that take less first."""
    return sorted(range(len(peaks)), key=peaks.__getitem__)


@pytest.mark.parametrize("steps", [60, 2000])
def test_the_predicted_worst_step_is_the_worst_step(steps: int) -> None:
    """Thirteen steps are traced, and every step takes more and less than the others as it does for real."""
    spec = PERCENTILES.replace("STEPS", str(steps))
    measured, predicted = peaks_by_step(really_run(spec)), put_together(spec)

    assert predicted.index(max(predicted)) == measured.index(max(measured))
    assert in_order(predicted) == in_order(measured)


def test_micro_batches_of_an_accumulation_differ_within_a_step() -> None:
    """But for the first two steps, of which three micro-batches stand for four."""
    predicted, measured = put_together(ACCUMULATED)[2:], peaks_by_step(really_run(ACCUMULATED))[2:]

    assert in_order(predicted) == in_order(measured)
    assert len(set(predicted)) == len(set(measured)) > 1
