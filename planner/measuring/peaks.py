"""Peaks of stretches of a run from readings of a counter that nobody resets: it never falls, so it tells bounds.

The allocator keeps one peak since the process began. A stretch in which it rose peaked exactly there; of one in which
it stood, only the ends and the height above are known. Nothing here reads a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.measuring.measurement import Levels

FINE_ITERATIONS = 2
"""Iterations told one by one: optimizer state is born in the first, the second is the usual peak, later ones alike."""

NOTHING = Levels()
_FIGURES = tuple(each.name for each in dataclasses.fields(Levels))


@dataclass(frozen=True, slots=True)
class Reading:
    """The allocator's counters at a moment; `device_bytes` is 0 where the driver was not asked."""

    peak: Levels
    current: Levels
    device_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeaks:
    """A phase of one iteration, or of all from `first_iteration` on; bytes.

    Its peak lies between `at_least` and `at_most`, each figure for itself; `at_most` is None if somebody reset the
    peaks meanwhile. `end` and `device_bytes` are of its end (the highest, of the driver's).
    """

    phase: str
    first_iteration: int
    last_iteration: int
    at_least: Levels
    at_most: Levels | None
    end: Levels
    device_bytes: int = 0


class Peaks:
    """What is known so far. A stretch lies between two readings and is named at its end."""

    def __init__(self, first: Reading, phase: str = "load") -> None:
        """`first` ends the first stretch, which began with the process."""
        self._before = first
        self._found: dict[tuple[str, int], PhasePeaks] = {}
        self.resets_seen = 0
        self._add(phase, 0, first, first.peak, first.peak)

    @property
    def highest(self) -> Levels:
        """The highest ever read, each figure at its own moment."""
        highest = Levels()
        for each in self._found.values():
            highest = highest.highest(each.at_least)
        return highest

    @property
    def device_bytes(self) -> int:
        return max(each.device_bytes for each in self._found.values())

    def stretches(self) -> tuple[PhasePeaks, ...]:
        return tuple(self._found.values())

    def close(self, phase: str, iteration: int, now: Reading) -> None:
        """What ran since the last reading was this phase of this iteration."""
        before, self._before = self._before, now
        ends = before.current.highest(now.current)
        if _each(min, now.peak, before.peak) != before.peak:
            self.resets_seen += 1
            self._add(phase, iteration, now, ends.highest(now.peak), None)
            return
        rose = {name: getattr(now.peak, name) > getattr(before.peak, name) for name in _FIGURES}
        least = Levels(**{name: getattr(now.peak if rose[name] else ends, name) for name in _FIGURES})
        self._add(phase, iteration, now, least, now.peak)

    def _add(self, phase: str, iteration: int, now: Reading, least: Levels, most: Levels | None) -> None:
        first = min(iteration, FINE_ITERATIONS + 1)
        device_bytes = now.device_bytes
        known = self._found.get((phase, first))
        if known is not None:
            least, device_bytes = known.at_least.highest(least), max(known.device_bytes, device_bytes)
            most = None if most is None or known.at_most is None else known.at_most.highest(most)
        self._found[(phase, first)] = PhasePeaks(
            phase=phase,
            first_iteration=first,
            last_iteration=iteration,
            at_least=least,
            at_most=most,
            end=now.current,
            device_bytes=device_bytes,
        )


def reading_of(stats: Mapping[str, int], device_bytes: int = 0) -> Reading:
    """From `torch.cuda.memory_stats`; a figure that this torch or this allocator backend does not know is 0."""
    return Reading(_levels(stats, "peak"), _levels(stats, "current"), device_bytes)


def _levels(stats: Mapping[str, int], which: str) -> Levels:
    return Levels(**{name: stats.get(f"{name}.all.{which}", 0) for name in _FIGURES})


def _each(choose: Callable[[int, int], int], one: Levels, other: Levels) -> Levels:
    return Levels(**{name: choose(getattr(one, name), getattr(other, name)) for name in _FIGURES})
