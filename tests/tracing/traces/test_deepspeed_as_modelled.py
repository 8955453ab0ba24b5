"""DeepSpeed's stages 1 and 2 beside figures of a model of them, which was written from its sources alone.

The model counted flat buffers, buckets, partitions and the step as DeepSpeed 0.19.8 allocates them, without running it:
its peaks are in tests/golden/deepspeed_stages_1_and_2.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deepspeed_jobs import ADAMW, BF16, OFFLOAD, PAIRS, divided

from planner.events import Category
from planner.job.schema import Job
from planner.tracing.job_program import trace
from planner.truth.measuring.measurement_lines import most_by_category, phases_of
from planner.upstream import torch_releases

pytestmark = pytest.mark.skipif(
    not torch_releases.since(2, 9), reason="modelled with a fused RMS norm, which keeps no input in float32"
)

FEW_BYTES = 12
"""Flags of infinite gradients and norms."""
JOBS = [
    *PAIRS,
    divided("overlapped", config=BF16, overlap_comm=True),
    divided("overlapped-1", stage=1, steps=2, config=BF16, overlap_comm=True),
    divided("fp16", config={"fp16": {"enabled": True}}),
    divided("offloaded", config={**BF16, **ADAMW}, **OFFLOAD),
]


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    content = Path(__file__).parents[2] / "golden" / "deepspeed_stages_1_and_2.json"
    found: dict[str, Any] = json.loads(content.read_text())
    return found


@pytest.mark.parametrize(("number", "job"), list(enumerate(JOBS)), ids=[job.metadata.name for job in JOBS])
def test_every_phase_peaks_as_was_modelled(counted: dict[str, Any], number: int, job: Job) -> None:
    rank = number % 2
    expected, events = counted[f"{job.metadata.name} rank {rank}"], trace(job, rank).events
    peaks = {f"{each.phase} {each.iteration}": each.peak.requested_bytes for each in phases_of(events)}

    assert list(peaks) == list(expected["phases"])
    apart = {phase: abs(peaks[phase] - expected["phases"][phase]) for phase in expected["phases"]}
    assert max(apart.values()) <= FEW_BYTES
    most = most_by_category(events)
    del most[Category.WORKSPACE]  # of kernels
    assert most == expected["most"]
