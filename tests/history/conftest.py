"""Histories in every database that is supported, a clock that tests set, and plans to fill them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from postgresql_server import postgresql as postgresql
from stopped_clock import Clock

from planner.events import Category, Phase
from planner.report.statement import (
    Advice,
    Holder,
    OutsideAllocator,
    Peak,
    PhaseStatement,
    Plan,
    Provenance,
    RankClassStatement,
    Seconds,
    Verdict,
)
from planner.service.history.store import History
from planner.units import GIB, MIB

MakePlan = Callable[..., Plan]


@pytest.fixture(params=["sqlite file", "postgresql"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database that several processes can open."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql").new_database())
    return f"sqlite:///{tmp_path}/history.db"


@pytest.fixture(params=["sqlite file", pytest.param("sqlite in memory", marks=pytest.mark.soak), "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql").new_database())
    return "sqlite://" if request.param == "sqlite in memory" else f"sqlite:///{tmp_path}/history.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(url: str, clock: Clock) -> Iterator[History]:
    with History.open(url, clock) as opened:
        yield opened


def _statement(ranks: str, representative: int, device: int, capacity: int, verdict: Verdict) -> RankClassStatement:
    outside = OutsideAllocator(cuda_context_bytes=600 * MIB, nccl_bytes=900 * MIB)
    reserved = device - outside.total_bytes
    return RankClassStatement(
        representative=representative,
        ranks=ranks,
        coordinates={"dp_replicate": representative},
        peak=Peak(
            phase=Phase.BACKWARD, iteration=2, allocated_bytes=reserved - GIB, reserved_bytes=reserved,
            device_bytes=device, interval_bytes=(device - GIB, device + GIB),
        ),
        capacity_bytes=capacity,
        verdict=verdict,
        cache_releases=0,
        at_peak={Category.PARAMETER: reserved - 2 * GIB, Category.ACTIVATION: GIB},
        phases=(
            PhaseStatement(
                phase=Phase.BACKWARD, iteration=2, peak_allocated_bytes=reserved - GIB,
                peak_reserved_bytes=reserved, end_allocated_bytes=GIB,
            ),
        ),
        outside_allocator=outside,
        holders=(
            Holder(
                bytes=GIB, category=Category.ACTIVATION, module="model.layers.0.mlp", op="aten.mm",
                shape=(8192, 14336), dtype="bfloat16",
            ),
        ),
    )  # fmt: skip


def _plan(
    number: int = 1,
    *,
    verdict: Verdict = Verdict.FITS,
    name: str = "llama-8b-sft",
    team: str = "nlp",
    queue: str = "h100",
    gpu: str = "H100-SXM-80GB",
    device_bytes: tuple[int, ...] = (40 * GIB, 30 * GIB),
    capacity_bytes: int = 80 * GIB,
) -> Plan:
    """A plan of two rank classes: ranks 0 and 1-7."""
    ranks = ("0", "1-7")
    return Plan(
        plan_id=f"pl-{number:026d}",
        trace_id=f"{number:064x}",
        calibrated=False,
        job={
            "schema": "planner.bundle/1",
            "metadata": {"name": name, "team": team, "queue": queue},
            "model": {"decoder": {"layers": 32, "hidden": 4096}},
            "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": {"name": gpu, "total_bytes": capacity_bytes}},
        },
        rank_classes=tuple(
            _statement(span, index, device, capacity_bytes, verdict)
            for index, (span, device) in enumerate(zip(ranks, device_bytes, strict=True))
        ),
        provenance=Provenance(
            planner="0.1.0", torch="2.13.0", allocator_rules="abc", catalog="def", calibration="none"
        ),
        seconds=Seconds(trace=3.25, replay=0.5, total=4.0),
    )


@pytest.fixture
def plan() -> MakePlan:
    return _plan


@pytest.fixture
def advised() -> Callable[[Plan], Plan]:
    """The same plan with a piece of advice."""
    advice = Advice(change={"train.micro_batch_size": 1}, device_bytes=36 * GIB, verdict=Verdict.FITS)
    return lambda plan: replace(plan, advice=(advice,))
