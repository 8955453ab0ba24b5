"""When enough of a program was seen: after so many iterations, or when they take no more memory than those before."""

from __future__ import annotations

from dataclasses import dataclass, field

FEWEST = 3
"""Optimizer state is born in the first iteration, DDP's buckets are made anew in the second."""
MOST = 30
"""A program whose peak still rises then is ended all the same, and the report says so."""


@dataclass(slots=True)
class Stopping:
    """`steps` 0: as soon as an iteration changes neither peak, from the third on."""

    steps: int = 0
    _peaks: list[tuple[int, int]] = field(default_factory=list)
    reason: str = ""
    """For people, once it has been decided."""

    def is_over(self, iterations: int, peaks: tuple[int, int]) -> bool:
        """Whether the program is ended, `iterations` of which are over; `peaks` are (allocated, reserved) so far."""
        if iterations <= len(self._peaks):
            return False
        self._peaks.append(peaks)
        if self.steps:
            self.reason = f"ended after {_count(self.steps)}, as asked for"
            return iterations >= self.steps
        if iterations >= FEWEST and self._peaks[-1] == self._peaks[-2]:
            self.reason = f"ended after {_count(iterations)}, of which the last changed no peak"
            return True
        self.reason = f"ended after {_count(iterations)}, although its peak still rises"
        return iterations >= MOST


def _count(iterations: int) -> str:
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"
