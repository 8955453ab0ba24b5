"""Exact plans of candidates, several at a time in child processes, each until a deadline.

A fork server loads PyTorch once, and every group of candidates that share a trace is planned in a child of its own: the
bytes are those of a fresh process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from planner import cuda_on_paper
from planner.job.schema import Job
from planner.planning.preload import PRELOAD
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import Task
from planner.runtime.running import StoppedError
from planner.searching.exact_plans import Answers, Group, OutOfTimeError, answers_of
from planner.truth.calibration.interval import Calibration


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
    _server: ForkServer = field(default_factory=lambda: cuda_on_paper.lasting_server(PRELOAD))
    _stopped: threading.Event = field(default_factory=threading.Event)
    _pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> ExactPlans:
        self._pool = ThreadPoolExecutor(self.processes)
        self._pool.submit(self._server.start)  # while candidates are still being looked through
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        assert self._pool is not None
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has come."""
        return self._stopped.is_set() or time.monotonic() >= self.deadline

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[Answers]:
        assert self._pool is not None
        return self._pool.submit(self._plan, Group(tuple(jobs), self.calibration, self.source, whole))

    def _plan(self, group: Group) -> Answers:
        if self.is_over:
            raise OutOfTimeError
        task = Task("planner.searching.exact_plans:plan_group", group)
        answer = running.run(task, UNLIMITED, server=self._server, stopped=lambda: self.is_over)
        if isinstance(answer.exceeded, StoppedError):
            raise OutOfTimeError
        messages.raise_failure(answer)
        self.count += 1
        return answers_of(answer, len(group.jobs))
