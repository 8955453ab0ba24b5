"""Traces the rank classes of a job and judges each: in this process, or in several at a time.

A class whose shards do not divide falls into parts, which are traced and judged each.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from planner import cuda_on_paper
from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.errors import SpecError
from planner.job.layout import Mesh, RankClass, first_rank_differs, parts_of, rank_classes, set_first_apart
from planner.job.schema import Job
from planner.planning.inputs import ProgramInputs
from planner.planning.judging import JudgedRank, RankTrace, judge_devices, share_of_class
from planner.planning.preload import PRELOAD
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.runtime import messages, running
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import AnswerWriter, Task
from planner.tracing.rank_trace import Trace

Progress = Callable[[str], None]

FEWEST_CLASSES = 4
"""Of a job that is worth a second process: one takes as long to start as to plan one or two classes."""
_NO_TIMELINE = replay(())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningInputs:
    """The program of a spec, and how it is planned. `source` gives the traces; `processes` is how many there may be
    at a time."""

    work: ProgramInputs
    source: TraceSource = USUAL_SOURCE
    processes: int = 1
    keep_traces: bool = True
    """Whether events and timelines are wanted: they are large where they travel between processes."""

    @property
    def job(self) -> Job:
        assert self.work.job is not None
        return self.work.job


@dataclass(frozen=True, slots=True)
class PlannedClass:
    """A rank class that was traced and judged: each of its parts."""

    judged: tuple[JudgedRank, ...]
    replay_seconds: float
    whole: bool = True
    """Whether traces and timelines are there; only then does the plan have them."""


def refuse_unplannable(job: Job) -> None:
    """Raises SpecError or AllocatorConfError for what can be said before the work: no GPU, a setting not modelled."""
    if job.cluster.gpu.total_bytes == 0:
        raise SpecError(
            "the job names no GPU, so nothing can be said of whether it fits",
            allowed="a name of the catalog, or {total_bytes: 79.1GiB, arch: sm_90}",
            place="cluster.gpu",
        )
    Rules.from_conf(job.allocator.conf)


def trace_class(
    job: Job,
    rank_class: RankClass,
    progress: Progress = lambda _: None,
    source: TraceSource = USUAL_SOURCE,
) -> Iterator[RankTrace]:
    """The trace of one rank class, or of each of its parts."""
    progress(f"tracing ranks {rank_class.ranks}{', compiling' if job.train.compile else ''}")
    trace = source.trace_rank(job, rank_class.representative)
    for part in parts_of_class(job, rank_class, trace):
        if part.representative != rank_class.representative:
            progress(f"tracing ranks {part.ranks}, which do not do the same as rank {rank_class.representative}")
            trace = source.trace_rank(job, part.representative)
        yield RankTrace(part, trace)


def parts_of_class(job: Job, rank_class: RankClass, trace: Trace) -> tuple[RankClass, ...]:
    """The classes into which one falls by what its representative did: each but the first has to be traced as well."""
    mesh = Mesh.of(job.parallel)
    parts = parts_of(mesh, rank_class, trace.sharded_dims, trace.parts)
    return set_first_apart(mesh, parts) if first_rank_differs(job.train) else parts


def assign_ranks(job: Job, by_representative: Mapping[int, Trace]) -> tuple[RankTrace, ...]:
    """Traces already made, with the ranks for which each speaks. Raises KeyError if one is missing."""
    return tuple(
        RankTrace(part, by_representative[part.representative])
        for rank_class in rank_classes(Mesh.of(job.parallel))
        for part in parts_of_class(job, rank_class, by_representative[rank_class.representative])
    )


def plan_classes(work: PlanningInputs, progress: Progress = lambda _: None) -> Sequence[PlannedClass]:
    """Trace and judge every rank class, in child processes where that is worth it: each takes every n-th class. What a
    child that was killed did not bring to an end is done here."""
    classes = rank_classes(Mesh.of(work.job.parallel))
    several = min(work.processes, len(classes) // 2)
    known = work.source.knows(work.job, [rank_class.representative for rank_class in classes])
    if several < 2 or len(classes) < FEWEST_CLASSES or known:
        return [_plan_class(work, rank_class, progress) for rank_class in classes]
    progress(f"planning {len(classes)} rank classes in {several} processes")
    planned = _plan_in_children(work, [range(len(classes))[first::several] for first in range(several)])
    return [
        planned[number] if number in planned else _without_unwanted(work, _plan_class(work, rank_class, progress))
        for number, rank_class in enumerate(classes)
    ]


def _plan_class(work: PlanningInputs, rank_class: RankClass, progress: Progress = lambda _: None) -> PlannedClass:
    judged: list[JudgedRank] = []
    replay_seconds = 0.0
    for rank_trace in trace_class(work.job, rank_class, progress, work.source):
        began = time.perf_counter()
        judged += judge_devices(work.work, share_of_class(work.job, rank_trace))
        replay_seconds += time.perf_counter() - began
    return PlannedClass(tuple(judged), replay_seconds)


def _plan_in_children(work: PlanningInputs, shares: Sequence[range]) -> dict[int, PlannedClass]:
    """What the children brought to an end, by number. Raises the first error that one of them reports."""
    server = cuda_on_paper.lasting_server(PRELOAD)

    def ask(share: range) -> dict[int, PlannedClass]:
        task = Task("planner.planning.planned_classes:plan_share", (work, share))
        answer = running.run(task, UNLIMITED, server=server)
        messages.raise_failure(answer)
        # What else it answers says that its memory ran out: the rest is planned here.
        return {int(name): pickle.loads(content) for name, content in answer.parts.items() if name.isdecimal()}

    with ThreadPoolExecutor(len(shares)) as pool:
        return {number: planned for part in pool.map(ask, shares) for number, planned in part.items()}


def plan_share(argument: tuple[PlanningInputs, range], answer: AnswerWriter) -> None:
    """The child's side: a part for each class, by its number."""
    work, share = argument
    classes = rank_classes(Mesh.of(work.job.parallel))
    for number in share:
        planned = _without_unwanted(work, _plan_class(work, classes[number]))
        answer.write(str(number), pickle.dumps(planned, pickle.HIGHEST_PROTOCOL))


def _without_unwanted(work: PlanningInputs, planned: PlannedClass) -> PlannedClass:
    if work.keep_traces:
        return planned
    return replace(planned, judged=tuple(map(_without_events, planned.judged)), whole=False)


def _without_events(judged: JudgedRank) -> JudgedRank:
    share, trace = judged.share, replace(judged.trace, events=())
    return replace(
        judged,
        share=replace(share, run=replace(share.run, trace=trace)),
        trace=trace,
        timeline=_NO_TIMELINE,
    )
