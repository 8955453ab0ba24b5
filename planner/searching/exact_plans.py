"""What an exact plan says of a candidate, whatever makes such plans, and answers that are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from planner.job.json_text import canonical_json
from planner.job.loading import bundle
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


@dataclass(slots=True)
class KnownAnswers:
    """Plans that answers for groups that were planned before, and has others planned."""

    plans: Plans
    known: dict[str, tuple[Answer, ...]] = field(default_factory=dict)
    """By the jobs of a group."""

    @property
    def processes(self) -> int:
        return self.plans.processes

    @property
    def is_over(self) -> bool:
        return self.plans.is_over

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        """As :class:`Plans` says; a whole answer serves where less is asked for."""
        name = name_of(jobs)
        known = self.known.get(name)
        if known is not None and (not whole or all(isinstance(each, Refused) or each.whole for each in known)):
            found: Future[tuple[Answer, ...]] = Future()
            found.set_result(known)
            return found
        future = self.plans.submit(jobs, whole=whole)
        future.add_done_callback(lambda done: self._keep(name, done))
        return future

    def _keep(self, name: str, done: Future[tuple[Answer, ...]]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.known[name] = done.result()


def name_of(jobs: Sequence[Job]) -> str:
    """The same for the same jobs in any process; metadata are no part of it."""
    parts = [{key: value for key, value in bundle(job).items() if key != "metadata"} for job in jobs]
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:32]


def to_json(known: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """As :func:`from_json` reads it."""
    return {
        name: [{"refused": each.reason} if isinstance(each, Refused) else asdict(each) for each in answers]
        for name, answers in dict(known).items()
    }


def from_json(document: Mapping[str, Any]) -> dict[str, tuple[Answer, ...]]:
    """The answers by the names of their groups."""
    return {name: tuple(_answer(each) for each in answers) for name, answers in document.items()}


def _answer(said: Mapping[str, Any]) -> Answer:
    if "refused" in said:
        return Refused(said["refused"])
    return Exact(**{**said, "verdict": Verdict(said["verdict"])})
