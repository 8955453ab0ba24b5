"""Limits of a child process, and the error when it exceeds one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from planner.units import GIB, MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for one child process together with everything that it starts."""

    seconds: float = 300.0
    """From its start to its end, by the clock."""
    memory_bytes: int = 12 * GIB
    """Of the host: anonymous, file-backed and shared pages, memory files included."""
    tasks: int = 256
    """Processes and threads at one time."""
    answer_bytes: int = 256 * MIB


UNLIMITED = Limits(seconds=float("inf"), memory_bytes=2**62, tasks=2**31, answer_bytes=2**62)
"""For planner's own code on its user's machine."""


class Limit(StrEnum):
    """Which bound was exceeded."""

    SECONDS = "seconds"
    MEMORY = "memory"
    TASKS = "tasks"
    ANSWER = "answer"


class LimitExceededError(Exception):
    """A child took more than its limits and was killed. Not an error for people: the caller knows what it ran."""

    def __init__(self, limit: Limit, limits: Limits, used: float = 0) -> None:
        super().__init__(f"the child exceeded its limit of {limit}")
        self.limit, self.limits, self.used = limit, limits, used

    def __reduce__(self) -> tuple[type[LimitExceededError], tuple[Limit, Limits, float]]:
        return type(self), (self.limit, self.limits, self.used)
