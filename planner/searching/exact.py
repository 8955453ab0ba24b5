"""Exact plans of candidates, several at a time in child processes, each until a deadline.

A fork server loads PyTorch once, and every group of candidates that share a trace is planned in a child of its own: the
bytes are those of a fresh process.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from planner.calibration.interval import Calibration
from planner.errors import PlannerError
from planner.job.schema import Job
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import rank_classes
from planner.planning import pipeline
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import RankClassStatement, Verdict, worst_verdict
from planner.runtime import answers, running
from planner.runtime.channel import AnswerWriter
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED
from planner.runtime.supervision import StoppedError
from planner.runtime.task import Answer as ChildAnswer
from planner.runtime.task import Task
from planner.searching.preload import PRELOAD

_FOUND = "found"


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


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs with one trace: they differ in the allocator's settings, or in GPUs of one architecture."""

    jobs: tuple[Job, ...]
    calibration: Calibration
    source: TraceSource = USUAL_SOURCE
    whole: bool = False
    """Plan every rank class even where one exceeds already."""


@dataclass(slots=True)
class ExactPlans:
    """Plans groups in so many processes at a time; to be used as a context, at whose end no child is left."""

    processes: int
    calibration: Calibration = field(default_factory=Calibration.none)
    source: TraceSource = USUAL_SOURCE
    deadline: float = float("inf")
    """By time.monotonic()."""
    count: int = 0
    """Groups planned so far."""
    shared: ForkServer | None = None
    """A server of the caller's, with PRELOAD, which stays when the context ends."""
    _server: ForkServer = field(default_factory=lambda: ForkServer(PRELOAD))
    _stopped: threading.Event = field(default_factory=threading.Event)
    _pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> ExactPlans:
        if self.shared is not None:
            self._server = self.shared
        self._pool = ThreadPoolExecutor(self.processes)
        self._pool.submit(self._server.start)  # while candidates are still being looked through
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        assert self._pool is not None
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.shared is None:
            self._server.close()

    @property
    def is_over(self) -> bool:
        """Whether the deadline has come."""
        return self._stopped.is_set() or time.monotonic() >= self.deadline

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[tuple[Answer, ...]]:
        assert self._pool is not None
        return self._pool.submit(self._plan, Group(tuple(jobs), self.calibration, self.source, whole))

    def _plan(self, group: Group) -> tuple[Answer, ...]:
        if self.is_over:
            raise OutOfTimeError
        task = Task("planner.searching.exact:plan_group", group)
        answer = running.run(task, UNLIMITED, server=self._server, stopped=lambda: self.is_over)
        if isinstance(answer.exceeded, StoppedError):
            raise OutOfTimeError
        answers.raise_failure(answer)
        self.count += 1
        return answers_of(answer, len(group.jobs))


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
        return (Refused(f"planning it ended with {answers.ending(answer)}"),) * jobs
    found: tuple[Answer, ...] = pickle.loads(answer.parts[_FOUND])
    return found


def plan_here(group: Group, is_over: Callable[[], bool] = lambda: False) -> tuple[Answer, ...]:
    """The answers for a group, in this process: what the plan of each job says. Raises OutOfTimeError where it is over
    before the last rank class is traced."""
    found: list[list[RankClassStatement]] = [[] for _ in group.jobs]
    classes = rank_classes(Mesh.of(group.jobs[0].parallel))
    try:
        for job in group.jobs:
            pipeline.refuse_unplannable(job)
        for planned, each in enumerate(classes, start=1):
            if is_over():
                raise OutOfTimeError
            for trace in pipeline.trace_class(group.jobs[0], each, source=group.source):
                for job, statements in zip(group.jobs, found, strict=True):
                    statements.append(pipeline.judge_trace(job, trace, group.calibration).statement)
            if not group.whole and all(worst_verdict(each) is Verdict.EXCEEDS for each in found):
                return tuple(_summary(each, whole=planned == len(classes)) for each in found)
    except PlannerError as error:
        return (Refused(error.problem),) * len(group.jobs)
    return tuple(_summary(each, whole=True) for each in found)


def _summary(statements: Sequence[RankClassStatement], *, whole: bool) -> Exact:
    fullest = max(statements, key=lambda each: each.peak.device_bytes)
    return Exact(
        verdict=worst_verdict(statements),
        device_bytes=fullest.peak.device_bytes,
        allocated_bytes=max(each.peak.allocated_bytes + each.outside_allocator.total_bytes for each in statements),
        headroom_bytes=min(each.headroom_bytes for each in statements),
        capacity_bytes=fullest.capacity_bytes,
        rank_classes=len(statements),
        whole=whole,
    )
