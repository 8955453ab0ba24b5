"""The model of DeepSpeed's stages 1 and 2 beside DeepSpeed's own engine, both on paper: to some bytes the same."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from deepspeed_jobs import ADAMW, BF16, OFFLOAD, PAIRS, divided

from planner.measuring.event_phases import phases_of
from planner.spec.job import Job
from planner.tracing.trace import trace
from planner.training.wraps import deepspeed_engine

FEW_BYTES = 12
"""Flags of infinite gradients and norms."""
JOBS = [
    *PAIRS,
    divided("overlapped", config=BF16, overlap_comm=True),
    divided("overlapped-1", stage=1, steps=2, config=BF16, overlap_comm=True),
    divided("fp16", config={"fp16": {"enabled": True}}),
    divided("offloaded", config={**BF16, **ADAMW}, **OFFLOAD),
]


def peaks(job: Job, rank: int) -> list[tuple[str, int, int]]:
    """Of every phase, in requested bytes."""
    return [(str(each.phase), each.iteration, each.peak.requested_bytes) for each in phases_of(trace(job, rank).events)]


@pytest.fixture
def by_deepspeed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Below stage 3 the engine runs for this test alone, and nobody is told what its tensors are for."""

    def untold(*_arguments: Any) -> None: ...

    monkeypatch.setattr(deepspeed_engine, "chosen", lambda _spec: True)
    monkeypatch.setattr(deepspeed_engine, "partitioning", lambda _spec: nullcontext())
    for name in ("_tell_divided", "_tell_flat", "tell_whole"):
        monkeypatch.setattr(deepspeed_engine, name, untold)
    return monkeypatch


@pytest.mark.parametrize(("number", "job"), enumerate(JOBS), ids=[job.metadata.name for job in JOBS])
def test_every_phase_peaks_as_deepspeeds_own_does(by_deepspeed: pytest.MonkeyPatch, number: int, job: Job) -> None:
    rank = number % 2
    theirs = peaks(job, rank)
    by_deepspeed.undo()
    ours = peaks(job, rank)

    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    apart = [abs(one[2] - other[2]) for one, other in zip(ours, theirs, strict=True)]
    assert max(apart) <= FEW_BYTES
