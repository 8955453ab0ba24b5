"""Gives the trace of a rank: from the cache, made here, or made in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

from planner.job.schema import Job
from planner.planning.trace_cache import TraceCache
from planner.tracing.isolated import trace_isolated
from planner.tracing.isolation import USUAL_ISOLATION, Isolation
from planner.tracing.traced import Trace


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Where traces come from. `isolation` is that of a factory's process; without a cache every trace is made."""

    isolation: Isolation = USUAL_ISOLATION
    cache: TraceCache | None = None

    def trace_rank(self, job: Job, rank: int, target: str = "") -> Trace:
        """What one rank does. Raises SpecError or TraceError where it cannot be traced."""
        if job.model.factory:  # what the code of a factory does, no cache knows
            return trace_isolated(job, rank, target, self.isolation)
        known = self.cache.load(job, rank, target) if self.cache else None
        if known is not None:
            return known
        from planner.tracing.trace import trace

        made = trace(job, rank, target)
        if self.cache is not None:
            self.cache.store(job, rank, target, made)
        return made

    def knows(self, job: Job, ranks: list[int]) -> bool:
        """Whether the traces of all of these ranks are in the cache."""
        return self.cache is not None and not job.model.factory and all(self.cache.has(job, rank) for rank in ranks)


USUAL_SOURCE = TraceSource()
