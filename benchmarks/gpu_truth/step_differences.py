"""Steps of two folders side by side: a device beside paper, or one torch beside another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from planner.truth.measuring.measurement_lines import Levels, Measurement

_FIGURES = ("requested_bytes", "allocated_bytes", "reserved_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """One peak of one step, here and there; both have it."""

    case: str
    figure: str
    here: int
    there: int

    @property
    def share(self) -> float:
        """By how much there is more there, relative to here."""
        return (self.there - self.here) / self.here


def compare_steps(here: Sequence[Measurement], there: Sequence[Measurement]) -> tuple[StepDifference, ...]:
    """The figures that steps of both have, by case; of a case that stands twice the last counts."""
    known = {each.case: each for each in there if each.phases and each.job and not each.error}
    found = {each.case: each for each in here if each.phases and each.job and not each.error}
    return tuple(
        StepDifference(case=case, figure=figure.removesuffix("_bytes"), here=mine, there=its)
        for case in sorted(set(found) & set(known))
        for figure in _FIGURES
        for mine, its in (_pair(found[case].peak, known[case].peak, figure),)
        if mine and its
    )


def render_steps(found: Sequence[StepDifference]) -> str:
    """A line for each figure with its median and worst, then the steps that differ, the furthest first."""
    lines = []
    for figure in dict.fromkeys(each.figure for each in found):
        of_figure = [each for each in found if each.figure == figure]
        far = sorted((abs(each.share), each.case) for each in of_figure)
        lines.append(
            f"{figure} bytes of {len(of_figure)} steps: median {statistics.median(s for s, _ in far):.2%} apart, worst "
            f"{far[-1][0]:.2%} ({far[-1][1]}), {sum(not share for share, _ in far)} the same"
        )
    differing = sorted((each for each in found if each.share), key=lambda each: -abs(each.share))
    lines += [
        f"  {each.case}: {each.figure} {each.here:,} and {each.there:,} B, {each.share:+.2%}" for each in differing
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _pair(here: Levels, there: Levels, figure: str) -> tuple[int, int]:
    return getattr(here, figure), getattr(there, figure)
