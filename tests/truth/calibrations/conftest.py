"""Observations for the tests of calibrations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.truth.calibration.observation import Observation
from planner.units import GIB, MIB


@pytest.fixture(scope="session")
def seen() -> Callable[..., Observation]:
    """10 GiB were predicted on an H100 and `off` as much more (0.01: one percent) measured; each case is another."""
    count = iter(range(10**9))

    def build(off: float = 0.0, **fields: Any) -> Observation:
        predicted = 10 * GIB
        figures: dict[str, Any] = {
            "gpu": "H100-SXM-80GB",
            "torch": "2.13.0+cu130",
            "cuda": "13.0",
            "case": f"case-{next(count)}",
            "predicted_reserved_bytes": predicted,
            "measured_reserved_bytes": predicted + round(predicted * off),
            "predicted_context_bytes": 800 * MIB,
            "device_total_bytes": 80 * GIB,
            "date": "2026-11-20",
        }
        return Observation(**{**figures, **fields})

    return build
