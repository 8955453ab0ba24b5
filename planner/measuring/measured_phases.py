"""Gathers what is measured from mark to mark into one statement per phase and iteration."""

from __future__ import annotations

from dataclasses import replace

from planner.events import Phase
from planner.measuring.measurement import Levels, MeasuredPhase


class Phases:
    """The phases so far, in the order of their beginnings; micro-batches of an iteration are taken together."""

    def __init__(self) -> None:
        self._found: dict[tuple[Phase, int], MeasuredPhase] = {}

    def add(self, phase: Phase, iteration: int, peak: Levels, end: Levels, device_bytes: int = 0) -> None:
        """A stretch of this phase has ended."""
        before = self._found.get((phase, iteration))
        if before is not None:
            peak, device_bytes = before.peak.highest(peak), max(before.device_bytes, device_bytes)
        measured = MeasuredPhase(phase=phase, iteration=iteration, peak=peak, end=end, device_bytes=device_bytes)
        self._found[(phase, iteration)] = measured

    def all(self) -> tuple[MeasuredPhase, ...]:
        return tuple(replace(each) for each in self._found.values())
