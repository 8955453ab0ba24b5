"""What an exact plan says of a candidate, and whatever makes such plans."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from planner.job.schema import Job
from planner.report.statement import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """What a plan says of a candidate: figures of the rank class that has the least room, as `planner plan` does."""

    verdict: Verdict
    device_bytes: int
    allocated_bytes: int
    """At the peak, with what lies outside the allocator: what no setting of the allocator gets below."""
    headroom_bytes: int
    capacity_bytes: int
    rank_classes: int
    whole: bool = True
    """False: one rank class exceeds its GPU, and the others were not planned."""

    @property
    def fits(self) -> bool:
        return self.verdict is not Verdict.EXCEEDS

    @property
    def surely_exceeds(self) -> bool:
        """Whether it is the tensors that are too many, whatever the allocator does with them."""
        return self.allocated_bytes > self.capacity_bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A candidate that cannot be planned, and why."""

    reason: str


Answer = Exact | Refused


class Plans(Protocol):
    """Whatever makes plans of candidates."""

    @property
    def processes(self) -> int:
        """How many groups are planned at a time."""

    @property
    def is_over(self) -> bool:
        """Whether no plan will be begun any more."""

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        """The answers for jobs with one trace, in their order; the future raises OutOfTimeError. `whole`: every rank
        class is planned, even where one exceeds already."""


class OutOfTimeError(Exception):
    """The deadline came, or somebody stopped the search, before the plan was made."""
