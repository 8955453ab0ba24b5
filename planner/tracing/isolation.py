"""Limits and walls under which code that a job brings is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.job.code_rules import ANY_CODE, CodeRules
from planner.runtime.limits import Limits
from planner.runtime.walls import Walls


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """For one process of a factory. On a user's own machine their code runs with limits alone."""

    limits: Limits = field(default_factory=Limits)
    walls: Walls | None = None
    code: CodeRules = ANY_CODE
    """Which factories may be called there."""


USUAL_ISOLATION = Isolation()
