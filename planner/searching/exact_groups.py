"""Plans candidates that share a trace: in the process that asks, or as the child of a fork server."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from planner.allocator.host.nodes import state_hosts
from planner.errors import PlannerError
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Job
from planner.planning import judging, pipeline
from planner.planning.judging import RankTrace
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import RankClassStatement, Verdict
from planner.runtime import messages
from planner.runtime.messages import Answer as ChildAnswer
from planner.runtime.messages import AnswerWriter
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError, Refused
from planner.truth.calibration.interval import Calibration
from planner.verdict import worst

_FOUND = "found"


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs with one trace: they differ in the allocator's settings, or in GPUs of one architecture."""

    jobs: tuple[Job, ...]
    calibration: Calibration
    source: TraceSource = USUAL_SOURCE
    whole: bool = False
    """Plan every rank class even where one exceeds already."""


@dataclass(slots=True)
class PlansHere:
    """Plans groups in this process, one after the other; the trace of a rank that has begun is brought to its end."""

    calibration: Calibration = field(default_factory=Calibration.none)
    source: TraceSource = USUAL_SOURCE
    deadline: float = float("inf")
    """By time.monotonic()."""
    count: int = 0
    """Groups planned so far."""
    processes: int = 1

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        found: Future[tuple[Answer, ...]] = Future()
        if self.is_over:
            found.set_exception(OutOfTimeError())
            return found
        try:
            found.set_result(plan_here(Group(tuple(jobs), self.calibration, self.source, whole), lambda: self.is_over))
        except OutOfTimeError as error:
            found.set_exception(error)
        else:
            self.count += 1
        return found


def plan_group(group: Group, answer: AnswerWriter) -> None:
    """The child's side."""
    answer.write(_FOUND, pickle.dumps(plan_here(group)))


def answers_of(answer: ChildAnswer, jobs: int) -> tuple[Answer, ...]:
    """What the child of :func:`plan_group` answered for so many jobs."""
    if _FOUND not in answer.parts:
        return (Refused(f"planning it ended with {messages.ending(answer)}"),) * jobs
    found: tuple[Answer, ...] = pickle.loads(answer.parts[_FOUND])
    return found


def plan_here(group: Group, is_over: Callable[[], bool] = lambda: False) -> tuple[Answer, ...]:
    """The answers for a group, in this process: what the plan of each job says. Raises OutOfTimeError where it is over
    before the last rank class is traced."""
    found: list[list[RankClassStatement]] = [[] for _ in group.jobs]
    traced: list[RankTrace] = []
    classes = rank_classes(Mesh.of(group.jobs[0].parallel))
    try:
        for job in group.jobs:
            pipeline.refuse_unplannable(job)
        for planned, each in enumerate(classes, start=1):
            if is_over():
                raise OutOfTimeError
            for trace in pipeline.trace_class(group.jobs[0], each, source=group.source):
                traced.append(trace)
                for job, statements in zip(group.jobs, found, strict=True):
                    statements.append(judging.judge_trace(job, trace, group.calibration).statement)
            exceeds = all(any(each.verdict is Verdict.EXCEEDS for each in statements) for statements in found)
            if exceeds and not group.whole:
                return tuple(_summary(each, whole=planned == len(classes)) for each in found)
    except PlannerError as error:
        return (Refused(error.problem),) * len(group.jobs)
    hosts = (_host_verdict(job, traced) for job in group.jobs)
    return tuple(_summary(each, whole=True, host=host) for each, host in zip(found, hosts, strict=True))


def _host_verdict(job: Job, traced: Sequence[RankTrace]) -> Verdict:
    """Of the nodes, where the job says what they have."""
    if not job.cluster.host_memory:
        return Verdict.FITS
    said = state_hosts(job, [pipeline.traced_host(job, each) for each in traced]).verdict
    return Verdict.FITS if said is None else Verdict(said)


def _summary(statements: Sequence[RankClassStatement], *, whole: bool, host: Verdict = Verdict.FITS) -> Exact:
    fullest = max(statements, key=lambda each: each.peak.device_bytes)
    return Exact(
        verdict=worst([*(each.verdict for each in statements), host]),
        device_bytes=fullest.peak.device_bytes,
        allocated_bytes=max(each.peak.allocated_bytes + each.outside_allocator.total_bytes for each in statements),
        headroom_bytes=min(each.headroom_bytes for each in statements),
        capacity_bytes=fullest.capacity_bytes,
        rank_classes=len(statements),
        whole=whole,
    )
