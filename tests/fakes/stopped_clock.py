"""A clock that goes when a test says so."""

from __future__ import annotations

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
