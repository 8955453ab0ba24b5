"""Clocks that go when a test says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass
class Clock:
    """Stands still until a test moves it."""

    now: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **time: float) -> datetime:
        self.now += timedelta(**time)
        return self.now


class LimitClock:
    """In the place of `time` where a limit is watched: goes as it should, and is hours later once `is_over` says so. So
    a limit ends what has come as far as the test wants, however long that took. The first reading, of which the
    deadline is made, is never late: a fast child may be over by then."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over, self._is_read = is_over, False

    def monotonic(self) -> float:
        is_late = self._is_read and self._is_over()
        self._is_read = True
        return time.monotonic() + (10_000 if is_late else 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
