"""When enough of a program was seen: its memory is steady, it was evaluated twice, and it saved a checkpoint; of one
that only infers, that no forward raises its peaks any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

FEWEST = 3
"""Optimizer state is born in the first iteration, DDP's buckets are made anew in the second."""
MOST = 30
"""A program whose peak still rises then is ended all the same, and the report says so."""
FORWARDS = 5
"""Of a program that only infers: so many at least."""
EVALUATIONS = 2
"""The second finds the cache as training has left it, in pieces; the first mostly does not."""
_PATIENCE = 2
"""A steady program is watched for what it has not done yet: so many times the iterations that it took to be steady."""
_PATIENCE_SECONDS = (5.0, 60.0)
"""But no longer than the second; one that only infers as long again as it took so far, within these."""
_EVALUATING, _EVALUATING_SECONDS = 15, 300.0
"""The end of an evaluation that has begun is waited for so many times longer, up to so long."""
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
    or until patience ends (None: by how many iterations it took until then). `seconds` is all the time that there is;
    the clocks are asked for seconds, of a processor and of the day."""

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
    _most: tuple[int, ...] = ()
    """What was seen so far of what is waited for."""
    _waits_since: float = 0.0
    _waits_from: int = 0
    """The iterations that were over then."""
    _took: float = 0.0
    """Seconds of a processor until it was steady, or had inferred for the first time as often as is looked for."""
    _inferred: tuple[int, int] | None = None
    """The peaks of a program that only infers, when they were looked at last."""
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.passed()

    @property
    def patience(self) -> float:
        """How long a program is watched that only infers, or evaluates, in seconds of a processor."""
        shortest, longest = _PATIENCE_SECONDS
        given = self.patience_seconds
        return min(max(self._took, shortest), longest) if given is None else given

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

    def has_inferred_enough(self, forwards: int, highest: Callable[[], tuple[int, int]]) -> bool:
        """Whether a program that has done so many forwards and trained nothing is ended: a while has passed in which
        none of them raised a peak. It may be long in coming to its training."""
        if forwards < max(FORWARDS, self.steps):
            return False
        waited = self.worked() - self._waits_since
        if self._inferred is not None and waited < self.patience:
            return False
        before, self._inferred = self._inferred, highest()
        if before != self._inferred:
            self._waits_since = self.worked()
            self._took = self._took or self._waits_since
            return False
        self.reason = f"ended after {forwards} forwards: it only infers, and none raised a peak in {waited:.0f} s"
        return True

    @property
    def asked(self) -> str:
        """Why forwards of a program that only infers are left out, where it was asked for fewer."""
        return f"ended after {count(self.steps)}, as asked for: it only infers"

    def is_out_of_patience(self, seen: Seen, *, evaluates: bool = False) -> bool:
        """Whether a steady program was watched long enough, whatever it lacks; longer if it `evaluates` just now."""
        if not self._steady:
            return False
        self._reset_patience(seen)
        if not self._has_waited(seen, evaluates) and not self.is_late():
            return False
        waited = count(seen.iterations - self._waits_from)
        how = f"nothing new came in {waited} (--patience watches longer)"
        if self.patience_seconds is not None:
            how = f"nothing new came in {self.worked() - self._waits_since:.0f} s"
        self.reason = f"ended after {count(seen.iterations)}: {self._since()}, and {how}"
        return True

    def is_late(self) -> bool:
        """Whether what is left of the time is for writing down what was seen."""
        return self.passed() - self._began >= _OF_ALL_TIME * self.seconds

    def _has_waited(self, seen: Seen, evaluates: bool) -> bool:
        waited, patience = self.worked() - self._waits_since, self.patience
        if evaluates:
            return waited >= max(patience, min(_EVALUATING * patience, _EVALUATING_SECONDS))
        if self.patience_seconds is not None:
            return waited >= patience
        return seen.iterations - self._waits_from >= _PATIENCE * self._steady or waited >= _PATIENCE_SECONDS[1]

    def _settles(self, iterations: int, highest: Callable[[], tuple[int, int]]) -> bool:
        """Whether it is steady from this iteration on; each is looked at once."""
        if iterations <= len(self._peaks):
            return False
        self._peaks.append(highest())
        self.reason = f"ended after {count(iterations)}, although its peak still rises"
        if iterations < FEWEST or self._peaks[-1] != self._peaks[-2]:
            return False
        self._steady, self._waits_since = iterations, self.worked()
        self._took = self._waits_since
        return True

    def _reset_patience(self, seen: Seen) -> None:
        """What is new makes it worth to wait for more."""
        found = (min(seen.evaluations, EVALUATIONS), min(seen.checkpoints, 1), -seen.idle)
        if not self._most or any(now > before for now, before in zip(found, self._most, strict=True)):
            self._most = tuple(map(max, found, self._most or found))
            self._waits_since, self._waits_from = self.worked(), seen.iterations

    def _since(self) -> str:
        return f"training is steady since iteration {self._steady}"


def count(iterations: int) -> str:
    """`3 iterations`."""
    return "1 iteration" if iterations == 1 else f"{iterations} iterations"
