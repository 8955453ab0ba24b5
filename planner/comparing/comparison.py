"""Predicted beside measured, as values and as the JSON object `planner.comparison/1`. All figures are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.events import Phase

SCHEMA = "planner.comparison/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, twice."""

    name: str
    predicted: int
    measured: int

    @property
    def error_percent(self) -> float | None:
        """|predicted - measured| / measured * 100 (DNNMem, Gao et al. 2020); None if nothing was measured."""
        if self.measured == 0:
            return 0.0 if self.predicted == 0 else None
        return abs(self.predicted - self.measured) / self.measured * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseComparison:
    phase: Phase
    iteration: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeComparison:
    """Allocations by size: `count` more were predicted (negative: measured) than on the other side."""

    bytes: int
    count: int
    ops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`sizes` is empty where allocations are not known one by one, or are all the same."""

    case: str
    device: str
    peak: tuple[Figure, ...]
    phases: tuple[PhaseComparison, ...] = ()
    categories: tuple[Figure, ...] = ()
    allocations: Figure | None = None
    """How many allocations there were."""
    sizes: tuple[SizeComparison, ...] = ()
    notes: tuple[str, ...] = field(default=())


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Plain values, keys in this order."""
    return {
        "schema": SCHEMA,
        "case": comparison.case,
        "device": comparison.device,
        "peak": [_figure(each) for each in comparison.peak],
        "phases": [
            {"phase": each.phase.value, "iteration": each.iteration, "figures": [_figure(f) for f in each.figures]}
            for each in comparison.phases
        ],
        "categories": [_figure(each) for each in comparison.categories],
        "allocations": _figure(comparison.allocations) if comparison.allocations else None,
        "sizes": [{"bytes": each.bytes, "count": each.count, "ops": list(each.ops)} for each in comparison.sizes],
        "notes": list(comparison.notes),
    }


def _figure(figure: Figure) -> Mapping[str, Any]:
    error = figure.error_percent
    return {
        "name": figure.name,
        "predicted": figure.predicted,
        "measured": figure.measured,
        "error_percent": None if error is None else round(error, 4),
    }
