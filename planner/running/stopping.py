"""When enough of a program was seen: its memory is steady, it was evaluated twice, and it saved a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

FEWEST = 3
"""Optimizer state is born in the first iteration, DDP's buckets are made anew in the second."""
MOST = 30
"""A program whose peak still rises then is ended all the same, and the report says so."""
EVALUATIONS = 2
"""The second finds the cache as training has left it, in pieces; the first mostly does not."""
_PATIENCE_SECONDS = (5.0, 60.0)
"""A steady program is watched as long again as it took to be so, within these, for what it has not done yet."""
_FOR_THE_SECOND, _FOR_THE_SECOND_SECONDS = 15, 300.0
"""Who evaluates once does it again: that is waited for so many times longer, up to so long."""
_OF_ALL_TIME = 0.7
"""The rest of a rank's time is for writing down what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a program has done. Evaluations and checkpoints are over; `idle` optimizers have not stepped twice."""

    iterations: int
    evaluations: int = 0
    checkpoints: int = 0
    idle: int = 0

    @property
    def is_whole(self) -> bool:
        return self.evaluations >= EVALUATIONS and self.checkpoints > 0 and not self.idle


@dataclass(slots=True)
class Stopping:
    """`steps` 0: once it is steady (from the third iteration on one changes neither peak), until everything was seen,
    or until patience ends (None: by how long it took until then). `seconds` is all the time that there is; the clocks
    are asked for seconds, of a processor and of the day."""

    steps: int = 0
    patience_seconds: float | None = None
    seconds: float = float("inf")
    worked: Callable[[], float] = time.process_time
    passed: Callable[[], float] = time.perf_counter
    reason: str = ""
    """For people, once it has been decided."""
    _peaks: list[tuple[int, int]] = field(default_factory=list)
    _steady: int = 0
    """The first iteration that changed no peak."""
    _last: Seen | None = None
    _waits_since: float = 0.0
    _patience: float = 0.0
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.passed()

    def is_over(self, seen: Seen, highest: Callable[[], tuple[int, int]]) -> bool:
        """Whether the program is ended; `highest` tells its peaks so far, (allocated, reserved)."""
        if self.steps:
            self.reason = f"ended after {count(self.steps)}, as asked for"
            return seen.iterations >= self.steps
        if not self._steady and not self._settles(seen.iterations, highest):
            return seen.iterations >= MOST
        if seen.is_whole:
            self.reason = f"ended after {count(seen.iterations)}: {self._since()}, and everything was seen"
            return True
        return self.is_out_of_patience(seen)

    def is_out_of_patience(self, seen: Seen, *, evaluates: bool = False) -> bool:
        """Whether a steady program was watched long enough, whatever it lacks; longer if it `evaluates` just now."""
        if not self._steady:
            return False
        self._reset_patience(seen)
        waited, patience = self.worked() - self._waits_since, self._patience
        if evaluates or seen.evaluations == 1:
            patience = max(patience, min(_FOR_THE_SECOND * patience, _FOR_THE_SECOND_SECONDS))
        if waited < patience and self.passed() - self._began < _OF_ALL_TIME * self.seconds:
            return False
        self.reason = f"ended after {count(seen.iterations)}: {self._since()}, and nothing new came in {waited:.0f} s"
        return True

    def _settles(self, iterations: int, highest: Callable[[], tuple[int, int]]) -> bool:
        """Whether it is steady from this iteration on; each is looked at once."""
        if iterations <= len(self._peaks):
            return False
        self._peaks.append(highest())
        self.reason = f"ended after {count(iterations)}, although its peak still rises"
        if iterations < FEWEST or self._peaks[-1] != self._peaks[-2]:
            return False
        self._steady, self._waits_since = iterations, self.worked()
        shortest, longest = _PATIENCE_SECONDS
        given = self.patience_seconds
        self._patience = min(max(self._waits_since, shortest), longest) if given is None else given
        return True

    def _reset_patience(self, seen: Seen) -> None:
        """What is new makes it worth to wait for more."""
        last, self._last = self._last, seen
        if last is None or (last.evaluations, last.checkpoints, last.idle) != (
            seen.evaluations, seen.checkpoints, seen.idle,
        ):  # fmt: skip
            self._waits_since = self.worked()

    def _since(self) -> str:
        return f"training is steady since iteration {self._steady}"


def count(iterations: int) -> str:
    """`3 iterations`."""
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"
