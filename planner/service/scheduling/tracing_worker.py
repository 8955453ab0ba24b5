"""A worker that traces jobs: for each piece of work it forks a child with the job's torch, and watches it."""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner import cuda_on_paper
from planner.errors import PlannerError
from planner.job.schema import Job
from planner.planning.preload import PRELOAD
from planner.planning.trace_source import TraceSource
from planner.runtime import messages, running
from planner.runtime.environments.interpreters import bring_code
from planner.runtime.fork_server import ForkServer, ServerLostError
from planner.runtime.limits import LimitExceededError, Limits
from planner.runtime.messages import Answer, Task
from planner.runtime.running import StoppedError
from planner.searching import exact_plans
from planner.searching.exact_plans import Group
from planner.service.errors import ProgramCrashedError, WorkerLostError, trace_limit_error
from planner.service.orders import Order, PlanRefused, WorkerResult
from planner.service.scheduling.plan_tasks import FURTHER, PLAN, TRACES, UNREADABLE
from planner.service.torch_versions import ONLY_OWN, TorchVersions
from planner.tracing.isolated import Isolation
from planner.tracing.program.rank_process import CrashedError, program_limits


def limits_of(job: Job, isolation: Isolation) -> Limits | None:
    """Of the process in which the job's own code runs, or the program that it is; None where it has neither."""
    if job.trainer is not None:
        return program_limits(isolation.limits)
    return isolation.limits if job.model.factory else None


MOST_OTHERS = 2
"""Besides that of the worker's own torch: each takes half a GiB."""


class TorchServers:
    """One fork server for each release of torch, started when it is first asked for; the one that was asked for longest
    ago goes. For one thread."""

    def __init__(self, torches: TorchVersions) -> None:
        self._torches = torches
        self._own = cuda_on_paper.start_server(PRELOAD)
        self._others: OrderedDict[str, ForkServer] = OrderedDict()

    def start(self) -> None:
        self._own.start()

    def server_for(self, torch: str) -> ForkServer:
        nearest = self._torches.nearest(torch)
        if not nearest.python:
            return self._own
        server = self._others.pop(nearest.python, None) or ForkServer(PRELOAD, python=nearest.python, root=bring_code())
        self._others[nearest.python] = server
        if len(self._others) > MOST_OTHERS:
            self._others.popitem(last=False)[1].close()
        try:
            server.start()
        except ServerLostError as lost:
            raise WorkerLostError(
                f"nothing is planned with torch {nearest.minor} now: {lost}",
                remedy="see the service's log for what it said, or plan with another release of torch",
                place="software.torch",
            ) from lost
        return server

    def close(self) -> None:
        for server in (self._own, *self._others.values()):
            server.close()


_TASKS = "planner.service.scheduling.plan_tasks"


class TracingWorker:
    """Does one piece of work at a time. What is wrong with a job is a value; an exception is a fault of ours.

    A child of this process is trusted: it answers with pickles. Code of users runs in a child of that child, whose
    answer it reads.
    """

    def __init__(self, limits: Limits, isolation: Isolation, torches: TorchVersions = ONLY_OWN) -> None:
        """`limits` are those of a child; `isolation` is for the process of a job's own code, which a child starts."""
        self._limits, self._isolation = limits, isolation
        self._servers = TorchServers(torches)
        self._stopped = 0
        self._servers.start()

    def process(self) -> int:
        return os.getpid()

    def close(self) -> None:
        self._servers.close()

    def live(self) -> None:
        """Does not return: its caller notices the end of this process."""
        threading.Event().wait()

    def stop(self, work: int) -> None:
        """End this work, and any before it: nobody wants it any more. Work is numbered from 1 by its caller."""
        self._stopped = max(self._stopped, work)

    def plan(self, work: int, order: Order, seconds: float) -> WorkerResult | PlanRefused:
        return self._result_of_job(work, "make_plan", (order, self._isolation), order.spec, seconds)

    def trace(self, work: int, job: Job, rank: int, seconds: float) -> WorkerResult | PlanRefused:
        return self._result_of_job(work, "trace_rank", (job, rank, self._isolation), job, seconds)

    def judge(
        self, work: int, order: Order, texts: Mapping[int, str], seconds: float
    ) -> WorkerResult | PlanRefused | None:
        """The plan that follows from traces by representative; None if they are not those of the job's ranks."""
        result = self._result_of_job(work, "judge_traces", (order, texts, self._isolation), order.spec, seconds)
        unreadable = isinstance(result, WorkerResult) and result.plan is None and result.exceeded is None
        return None if unreadable else result

    def run(self, work: int, order: Order, seconds: float) -> WorkerResult | PlanRefused:
        limits = self._limits_beside(order.program.limits if order.program else None, seconds)
        return self._result(work, Task(f"{_TASKS}:run_program", order), limits, order.torch)

    def search(self, work: int, group: Group, seconds: float) -> tuple[exact_plans.Answer, ...] | PlanRefused:
        job = group.jobs[0]
        task = Task(f"{exact_plans.__name__}:plan_group", replace(group, source=TraceSource(self._isolation)))
        answer = self._answer(work, task, self._limits_of(job, seconds), job.software.torch)
        if isinstance(answer, PlanRefused):
            return answer
        if isinstance(answer.exceeded, LimitExceededError):
            return PlanRefused(trace_limit_error(answer.exceeded))
        if isinstance(answer.exceeded, StoppedError):
            return ()
        return exact_plans.answers_of(answer, len(group.jobs))

    def _result_of_job(
        self, work: int, function: str, argument: Any, job: Job, seconds: float
    ) -> WorkerResult | PlanRefused:
        task = Task(f"{_TASKS}:{function}", argument)
        return self._result(work, task, self._limits_of(job, seconds), job.software.torch)

    def _result(self, work: int, task: Task, limits: Limits, torch: str) -> WorkerResult | PlanRefused:
        answer = self._answer(work, task, limits, torch)
        if isinstance(answer, PlanRefused):
            return answer
        if isinstance(answer.exceeded, StoppedError):
            return WorkerResult()
        exceeded = messages.exceeded_limit(answer, limits)
        if exceeded is None and answer.exit_code:
            raise ChildProcessError(f"the tracing process ended with {messages.ending(answer)}")
        if exceeded is None and not {PLAN, TRACES, UNREADABLE} & answer.parts.keys():
            raise ChildProcessError("the tracing process ended without an answer")
        parts = {name: pickle.loads(answer.parts[name]) for name in (PLAN, TRACES, FURTHER) if name in answer.parts}
        return WorkerResult(**parts, exceeded=exceeded)

    def _answer(self, work: int, task: Task, limits: Limits, torch: str) -> Answer | PlanRefused:
        try:
            server = self._servers.server_for(torch)
            answer = running.run(task, limits, server=server, stopped=lambda: work <= self._stopped)
            messages.raise_failure(answer)
        except CrashedError as crash:
            return PlanRefused(ProgramCrashedError(traceback=crash.text, **crash.parts))
        except PlannerError as error:
            return PlanRefused(error)
        return answer

    def _limits_of(self, job: Job, seconds: float) -> Limits:
        return self._limits_beside(limits_of(job, self._isolation), seconds)

    def _limits_beside(self, code: Limits | None, seconds: float) -> Limits:
        """Of a child; code of users is a child of the child, and counts with it."""
        return Limits(
            seconds=seconds,
            memory_bytes=self._limits.memory_bytes + (code.memory_bytes if code else 0),
            tasks=self._limits.tasks + (code.tasks if code else 0),
        )
