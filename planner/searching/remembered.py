"""Traces of a plan that was made already, for changes that leave the trace as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.job.schema import Allocator, DataLoader, Gpu, Job
from planner.planning.judging import RankTrace
from planner.planning.trace_source import TraceSource
from planner.tracing.traced import Trace


@dataclass(frozen=True, slots=True)
class RememberedTraces(TraceSource):
    """A source that has the traces of one job, and asks another source for any other."""

    job: Job | None = None
    """Without what no trace depends on."""
    traces: Mapping[int, Trace] = field(default_factory=dict)
    """By rank."""

    @classmethod
    def of(cls, source: TraceSource, job: Job, traces: Sequence[RankTrace]) -> TraceSource:
        """The source, with these traces of the job; as it is, where there are none."""
        if not traces:
            return source
        by_rank = {each.rank_class.representative: each.trace for each in traces}
        return cls(isolation=source.isolation, cache=source.cache, job=_traced_part(job), traces=by_rank)

    def trace_rank(self, job: Job, rank: int, target: str = "") -> Trace:
        if rank in self.traces and not target and _traced_part(job) == self.job:
            return self.traces[rank]
        return TraceSource.trace_rank(self, job, rank, target)


def _traced_part(job: Job) -> Job:
    cluster = replace(job.cluster, gpu=Gpu(arch=job.cluster.gpu.arch), held_by_others_bytes=0, host_memory=0)
    return replace(job, allocator=Allocator(), cluster=cluster, train=replace(job.train, data_loader=DataLoader()))
