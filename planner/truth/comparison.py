"""Predicted beside measured, by phase and by allocation: values, the JSON `planner.comparison/1`, and text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.events import Alloc, Event, Phase
from planner.units import show_bytes

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


_COLUMNS = f"{'':30} {'predicted':>14} {'measured':>14} {'error':>9}"


def render(comparison: Comparison, *, most_sizes: int = 12) -> str:
    """The whole comparison; at most `most_sizes` sizes of allocations."""
    return "\n".join(_lines(comparison, most_sizes)) + "\n"


def _lines(comparison: Comparison, most_sizes: int) -> Iterator[str]:
    yield f"{comparison.case or 'job'}{f' on {comparison.device}' if comparison.device else ''}"
    yield _COLUMNS
    yield from (_row(each.name, each) for each in comparison.peak)
    for phase in comparison.phases:
        yield f"{phase.phase.value} {phase.iteration}"
        yield from (_row(f"  {each.name}", each) for each in phase.figures)
    if comparison.categories:
        yield "by category"
        yield from (_row(f"  {each.name}", each) for each in comparison.categories)
    if comparison.allocations is not None:
        whole = comparison.allocations
        yield f"{'allocations':30} {whole.predicted:>14} {whole.measured:>14}"
    for each in comparison.sizes[:most_sizes]:
        side = "predicted" if each.count > 0 else "measured"
        yield f"  {abs(each.count)} x {each.bytes} B more {side}  {', '.join(each.ops)}".rstrip()
    if len(comparison.sizes) > most_sizes:
        yield f"  and {len(comparison.sizes) - most_sizes} other sizes"
    yield from (f"note: {note}" for note in comparison.notes)


def _row(name: str, figure: Figure) -> str:
    error = figure.error_percent
    shown = "" if error is None else f"{error:.3f} %"
    name = name.replace("_", " ")
    return f"{name:30} {show_bytes(figure.predicted):>14} {show_bytes(figure.measured):>14} {shown:>9}"


_HOST_SCALARS_BYTES = 8
"""Numbers that a CPU wraps into tensors, and a GPU takes by value."""


def compare_sizes(predicted: Sequence[Event], measured: Sequence[Event]) -> tuple[Figure, tuple[SizeComparison, ...]]:
    """How many allocations there are, and the sizes whose counts differ, the most bytes first."""
    here, there = _sizes(predicted), _sizes(measured)
    counts = {size: sum(here[size].values()) - sum(there[size].values()) for size in here.keys() | there.keys()}
    differing = tuple(
        SizeComparison(bytes=size, count=count, ops=_ops(here[size] if count > 0 else there[size]))
        for size, count in sorted(counts.items(), key=lambda each: (-abs(each[0] * each[1]), each[0]))
        if count
    )
    whole = Figure(name="allocations", predicted=_number(here), measured=_number(there))
    return whole, differing


def _in_order(events: Sequence[Event]) -> list[Alloc]:
    return [e for e in events if isinstance(e, Alloc) and e.requested_bytes > _HOST_SCALARS_BYTES]


def _sizes(events: Sequence[Event]) -> defaultdict[int, Counter[str]]:
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in _in_order(events):
        found[event.requested_bytes][event.origin.op if event.origin else ""] += 1
    return found


def _number(sizes: defaultdict[int, Counter[str]]) -> int:
    return sum(sum(ops.values()) for ops in sizes.values())


def _ops(ops: Counter[str]) -> tuple[str, ...]:
    return tuple(op for op, _ in ops.most_common(4) if op)
