"""How fast this machine is now, beside the one on which the limits of tests were set."""

from __future__ import annotations

import time
from collections.abc import Callable

YARDSTICK_SECONDS = 0.068
"""Processor time of the yardstick on the machine of the limits (2 cores, CPython 3.11, 2026-11-29)."""


def slowness(clock: Callable[[], float] = time.process_time) -> float:
    """How many times as long as there a fixed piece of work takes here, at least 1. With `time.perf_counter` what else
    the machine does counts too."""
    return max(1.0, min(_measure(clock) for _ in range(3)) / YARDSTICK_SECONDS)


def takes_too_long(seconds: float, most_seconds: float) -> bool:
    """Whether this processor time is more than so much on the machine of the limits."""
    return seconds > most_seconds and seconds > most_seconds * slowness()


def _measure(clock: Callable[[], float]) -> float:
    began, total = clock(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return clock() - began
