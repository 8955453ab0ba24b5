"""Small jobs to search over, and plans of them that cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from planner.job.loading import load_document
from planner.job.schema import Job
from planner.report.statement import Verdict
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError
from planner.searching.weighing import cost_of
from planner.units import GIB

DECODER = {"layers": 4, "hidden": 128, "heads": 4, "kv_heads": 2, "ffn": 256, "vocab": 512}


def small_job(**sections: Any) -> Job:
    """A decoder on two GPUs of whatever memory; sections go over those of the spec."""
    spec: dict[str, Any] = {
        "model": {"decoder": DECODER},
        "train": {"micro_batch_size": 4, "sequence_length": 64, "gradient_accumulation_steps": 2, "iterations": 2},
        "parallel": {"dp_replicate": 2},
        "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": {"total_bytes": 4 * GIB, "arch": "sm_90"}},
    }
    for name, section in sections.items():
        spec[name] = {**spec.get(name, {}), **section}
    return load_document(spec)


@dataclass
class SupposedPlans:
    """Plans whose figures a function supposes: reserved and allocated device bytes of a job."""

    bytes_of: Callable[[Job], tuple[int, int]]
    processes: int = 2
    most: float = float("inf")
    """Plans until the time is over."""
    planned: list[Job] = field(default_factory=list)
    slowness_of: Callable[[Job], float] = lambda _job: 1.0
    """The time of a job's traced step, over that of its products and collectives alone."""

    @property
    def is_over(self) -> bool:
        return len(self.planned) >= self.most

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        """Answered at once."""
        assert isinstance(whole, bool)
        found: Future[tuple[Answer, ...]] = Future()
        if self.is_over:
            found.set_exception(OutOfTimeError())
            return found
        self.planned += jobs
        found.set_result(tuple(map(self.exact, jobs)))
        return found

    def exact(self, job: Job) -> Exact:
        device, allocated = self.bytes_of(job)
        capacity, cost = job.cluster.gpu.total_bytes, cost_of(job)
        rate = 0.0 if cost is None else 1 / (cost * self.slowness_of(job))
        return Exact(
            verdict=Verdict.EXCEEDS if device > capacity else Verdict.FITS,
            device_bytes=device,
            allocated_bytes=allocated,
            headroom_bytes=capacity - device,
            capacity_bytes=capacity,
            rank_classes=1,
            tokens_per_second=rate,
        )


@pytest.fixture
def small() -> Callable[..., Job]:
    """Builds such a job."""
    return small_job


@pytest.fixture
def supposed() -> type[SupposedPlans]:
    """Builds such plans."""
    return SupposedPlans
