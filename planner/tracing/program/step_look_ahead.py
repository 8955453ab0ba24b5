"""Looks ahead for the steps at which a program's sizes are largest.

A child process lets the loop go through other numbers, each until a model is called: what the program's own lines make
of them is seen, and nothing of it stays.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from planner.tracing.program.child_answers import fork_off
from planner.tracing.program.input_sizes import Causes
from planner.tracing.program.size_schedules import SizeByStep, say_schedules

_SECONDS = 15.0
_GRID, _MOST_NUMBERS = 33, 256
"""Numbers that are tried at first, as far from each other as there is room, and in all."""
_TIMES = 2
"""A counter that is increased before the model is called goes over every other number."""
_MOST_STEPS = 4
"""To which a loop counts: sizes that are largest at others stay unjudged."""

Sizes = Mapping[int, float]
"""By the index of a line."""


class Skip(BaseException):
    """The rest of an iteration is left out, in the child."""


class StepLookAhead:
    """Of one program, whose lines `sizes` tell what they are worth whenever they are run."""

    def __init__(self, sizes: Sequence[SizeByStep]) -> None:
        self.sizes = sizes
        self._met: dict[int, float] = {}
        """The largest that came, by line; in the child those of one number."""
        self._now: dict[int, float] = {}
        self._found: dict[int, Sizes] = {}
        """What the child has seen, by number."""
        self._doubtful: set[int] = set()
        """Lines that had other values when the child came to a number again: drawn, or by what was before."""
        self.is_child = False

    def note(self, line: int, value: object) -> None:
        if (size := _measure_size(value)) is not None:
            self._now[line] = size
            self._met[line] = max(self._met.get(line, size), size)

    def sizes_now(self) -> Causes:
        """The values that the lines had last."""
        return tuple(sorted(self._now.items()))

    def forget(self) -> None:
        """A training loop begins: what was before it warmed up."""
        self._met.clear()

    def look(self, now: int, last: int) -> Iterator[int] | None:
        """In the child the numbers to which it counts; the child ends with the last of them."""
        forked = fork_off(_SECONDS, is_alone=True)
        if isinstance(forked, bytes):
            self._found, self._doubtful = pickle.loads(forked) if forked else ({}, set())
            return None
        self.is_child, self._finish = True, forked
        return self._try(now, last)

    def finish(self) -> None:
        """The child has left the loop: it ends."""
        self._finish((self._found, self._doubtful))

    def steps(self) -> dict[int, list[int]]:
        """To which the loop counts to meet larger sizes than before: the lines that are largest there, by step."""
        chosen: dict[int, list[int]] = {}
        for line, (step, size) in self._largest().items():
            if size > self._met.get(line, -math.inf) and line not in self._doubtful:
                chosen.setdefault(step, []).append(line)
        together = {
            number: math.prod(size for line, size in sizes.items() if line not in self._doubtful)
            for number, sizes in self._found.items()
        }
        most = max(together.values(), default=0.0)
        if chosen and most > max(together[step] for step in chosen):
            chosen[min(number for number, size in together.items() if size == most)] = []
        return dict(sorted(chosen.items())[-_MOST_STEPS:])

    def say_unjudged(self) -> tuple[str, ...]:
        """A sentence for each kind of size that may be larger at steps to which the program was not brought."""
        largest = self._largest()
        kinds = {size.what for size in self.sizes}
        for kind in [*kinds]:
            lines = {line for line, size in enumerate(self.sizes) if size.what == kind}
            known = lines & largest.keys()
            if (
                known - self._doubtful
                and all(self.sizes[line].value is not None for line in lines)
                and not (lines & self._met.keys()) - known
                and all(self._met.get(line, -math.inf) >= largest[line][1] for line in known)
            ):
                kinds.discard(kind)
        return say_schedules([size for size in self.sizes if size.what in kinds])

    def say_largest(self, lines: Sequence[int]) -> str:
        """What is largest at a step that was chosen."""
        largest = self._largest()
        named = [
            f"the size of the {size.what} at {size.place} ({size.text}) is {largest[line][1]:,.0f}"
            for line, size in ((line, self.sizes[line]) for line in lines[:1])
        ]
        return f"Of all steps {named[0]} at most." if named else "All sizes together are largest there."

    def _largest(self) -> dict[int, tuple[int, float]]:
        """By line the first number at which it is largest, and its size."""
        largest: dict[int, tuple[int, float]] = {}
        for number, sizes in sorted(self._found.items()):
            for line, size in sizes.items():
                if line not in largest or size > largest[line][1]:
                    largest[line] = number, size
        return largest

    def _try(self, now: int, last: int) -> Iterator[int]:
        began = time.perf_counter()
        for number in numbers_to_try(now, last, self._found):
            yield from self._meet(number)
            self._found[number] = self._met
            if time.perf_counter() - began > _SECONDS:
                break
        for number in {now, *(step for step, _ in self._largest().values())}:
            yield from self._meet(number)
            before = self._found.get(number, {})
            again = self._met or dict.fromkeys(before)  # whatever led to them can be had once only
            self._doubtful |= {line for line in again.keys() & before.keys() if again[line] != before[line]}
        self.finish()

    def _meet(self, number: int) -> Iterator[int]:
        for _ in range(_TIMES):
            self._met = {}
            yield number
            if self._met:
                break


def numbers_to_try(first: int, last: int, found: Mapping[int, Sizes]) -> Iterator[int]:
    """At first evenly spaced ones; then between those where a size changes beside its largest; then wherever there is
    most room."""
    spaces = min(_GRID - 1, last - first)
    yield from (first + (last - first) * at // max(spaces, 1) for at in range(spaces + 1))
    while len(found) < min(_MOST_NUMBERS, last - first + 1):
        tried = sorted(found)
        gaps = [(low, high) for low, high in pairwise(tried) if high - low > 1]
        if not gaps:
            return
        largest: dict[int, tuple[float, int]] = {}
        for number in tried:
            for line, size in found[number].items():
                if line not in largest or size > largest[line][0]:
                    largest[line] = size, number
        beside = [
            gap
            for gap in gaps
            if any(
                number in gap and found[gap[0]].get(line) != found[gap[1]].get(line)
                for line, (_, number) in largest.items()
            )
        ]
        low, high = max(beside or gaps, key=lambda gap: gap[1] - gap[0])
        yield (low + high) // 2


def _measure_size(value: Any) -> float | None:
    """A number, or the product of several; None of everything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not isinstance(value, tuple | list) or not value:
        return None
    parts = [_measure_size(part) for part in value]
    return None if None in parts else math.prod(part for part in parts if part is not None)
