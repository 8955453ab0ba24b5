"""Measurements small enough to write down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.events import Phase
from planner.truth.measuring.measurement_lines import DeviceFacts, Levels, MeasuredPhase, Measurement, Truth

GPU = DeviceFacts(kind="cuda", name="NVIDIA H100 80GB HBM3", total_bytes=85_000_000_000, arch="sm_90")


def levels(allocated: int, reserved: int) -> Levels:
    return Levels(requested_bytes=allocated, allocated_bytes=allocated, active_bytes=allocated, reserved_bytes=reserved)


@pytest.fixture
def measurement() -> Callable[..., Measurement]:
    """A step of two phases: 100 then 300 bytes allocated, 200 then 400 reserved."""

    def build(**changes: Any) -> Measurement:
        phases = (
            MeasuredPhase(phase=Phase.LOAD, iteration=0, peak=levels(100, 200), end=levels(100, 200), device_bytes=700),
            MeasuredPhase(
                phase=Phase.FORWARD, iteration=1, peak=levels(300, 400), end=levels(250, 400), device_bytes=900
            ),
        )
        given: dict[str, Any] = {
            "case": "mlp",
            "job": {"schema": "planner.bundle/1"},
            "device": GPU,
            "software": {"torch": "2.13.0"},
            "date": "2026-01-02T03:04:05+00:00",
            "phases": phases,
            "categories": {"parameter": 100, "gradient": 100},
            "truth": Truth(runs=2, agreeing=2, net_bytes=10, live_bytes=10),
        }
        return Measurement(**{**given, **changes})

    return build
