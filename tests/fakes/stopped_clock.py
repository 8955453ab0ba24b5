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
    a limit ends what has come as far as the test wants, however long that took."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over

    def monotonic(self) -> float:
        return time.monotonic() + (10_000 if self._is_over() else 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
