"""Predicted beside measured, by phase and by allocation: values, the JSON `planner.comparison/1`, and text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.events import Alloc, Event, Phase
from planner.records import to_plain
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
    notes: tuple[str, ...] = ()


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Plain values, keys in this order."""
    return {
        "schema": SCHEMA,
        **to_plain(comparison),
        "peak": [_figure(figure) for figure in comparison.peak],
        "phases": [
            {**to_plain(phase), "figures": [_figure(figure) for figure in phase.figures]} for phase in comparison.phases
        ],
        "categories": [_figure(figure) for figure in comparison.categories],
        "allocations": _figure(comparison.allocations) if comparison.allocations else None,
    }


def _figure(figure: Figure) -> Mapping[str, Any]:
    error = figure.error_percent
    return {**to_plain(figure), "error_percent": None if error is None else round(error, 4)}


def render(comparison: Comparison, *, most_sizes: int = 12) -> str:
    """The whole comparison; at most `most_sizes` sizes of allocations."""
    return "\n".join(_lines(comparison, most_sizes)) + "\n"


def _lines(comparison: Comparison, most_sizes: int) -> Iterator[str]:
    yield f"{comparison.case or 'job'}{f' on {comparison.device}' if comparison.device else ''}"
    yield f"{'':30} {'predicted':>14} {'measured':>14} {'error':>9}"
    yield from _rows(comparison.peak)
    for phase in comparison.phases:
        yield f"{phase.phase.value} {phase.iteration}"
        yield from _rows(phase.figures, indent="  ")
    if comparison.categories:
        yield "by category"
        yield from _rows(comparison.categories, indent="  ")
    if comparison.allocations is not None:
        whole = comparison.allocations
        yield f"{'allocations':30} {whole.predicted:>14} {whole.measured:>14}"
    for size in comparison.sizes[:most_sizes]:
        side = "predicted" if size.count > 0 else "measured"
        yield f"  {abs(size.count)} x {size.bytes} B more {side}  {', '.join(size.ops)}".rstrip()
    if len(comparison.sizes) > most_sizes:
        yield f"  and {len(comparison.sizes) - most_sizes} other sizes"
    yield from (f"note: {note}" for note in comparison.notes)


def _rows(figures: Iterable[Figure], *, indent: str = "") -> Iterator[str]:
    for figure in figures:
        error = "" if figure.error_percent is None else f"{figure.error_percent:.3f} %"
        name = indent + figure.name.replace("_", " ")
        yield f"{name:30} {show_bytes(figure.predicted):>14} {show_bytes(figure.measured):>14} {error:>9}"


_HOST_SCALARS_BYTES = 8
"""Numbers that a CPU wraps into tensors, and a GPU takes by value."""


def compare_sizes(predicted: Sequence[Event], measured: Sequence[Event]) -> tuple[Figure, tuple[SizeComparison, ...]]:
    """How many allocations there are, and the sizes whose counts differ, the most bytes first."""
    here, there = _operators_by_size(predicted), _operators_by_size(measured)
    differing = []
    for size in here.keys() | there.keys():
        if count := here[size].total() - there[size].total():
            operators = (here if count > 0 else there)[size].most_common(4)
            differing.append(SizeComparison(bytes=size, count=count, ops=tuple(op for op, _ in operators if op)))
    differing.sort(key=lambda size: (-abs(size.bytes * size.count), size.bytes))
    counts = [sum(operators.total() for operators in side.values()) for side in (here, there)]
    return Figure(name="allocations", predicted=counts[0], measured=counts[1]), tuple(differing)


def _operators_by_size(events: Sequence[Event]) -> defaultdict[int, Counter[str]]:
    operators: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in events:
        if isinstance(event, Alloc) and event.requested_bytes > _HOST_SCALARS_BYTES:
            operators[event.requested_bytes][event.origin.op if event.origin else ""] += 1
    return operators
