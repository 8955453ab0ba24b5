"""A comparison for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from planner.comparing.comparison import Comparison, Figure
from planner.units import show_bytes

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
