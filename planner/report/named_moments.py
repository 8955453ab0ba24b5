"""Moments of a job that need more than its usual step: each with a peak of its own, its phase, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.events import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedMoment:
    """A moment at which jobs run out of memory.

    The three figures are peaks in bytes: `reserved_bytes` is the most until this moment, `device_bytes` is that and
    what lies outside the allocator. `iteration` is the optimizer step, counted from 1.
    """

    name: str
    phase: Phase
    iteration: int
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    sentence: str


def read_moment(document: Mapping[str, Any]) -> NamedMoment:
    """The moment that was written as its fields."""
    return NamedMoment(**{**document, "phase": Phase(document["phase"])})
