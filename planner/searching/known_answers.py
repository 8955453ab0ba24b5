"""What plans said of candidates, kept so that a search that ended early goes on from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

from planner.job.bundle import bundle
from planner.job.json_text import canonical_json
from planner.job.schema import Job
from planner.report.statement import Verdict
from planner.searching.exact import Answer, Exact, Plans, Refused


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
