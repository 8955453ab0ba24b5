"""Exact plans of candidates that share a trace: what they say, who makes them, and answers that are kept.

Those of :class:`ExactPlans` are made by children of a fork server, which loads PyTorch once: the bytes are those of a
fresh process.
"""

from __future__ import annotations

import hashlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from planner import cuda_on_paper
from planner.errors import PlannerError
from planner.hardware import catalog
from planner.job.layout import Mesh, rank_classes
from planner.job.loading import trace_id
from planner.job.schema import Job, multiprocessors_of
from planner.planning import judging, planned_classes
from planner.planning.inputs import inputs_of_job
from planner.planning.judging import RankTrace, share_of_class
from planner.planning.memory_pool import state_pool
from planner.planning.plan import plan_job
from planner.planning.preload import PRELOAD
from planner.planning.stating import state_job_hosts
from planner.planning.trace_source import USUAL_SOURCE, TraceSource
from planner.report.statement import RankClassStatement, Verdict, slowest_step
from planner.runtime import messages, running
from planner.runtime.fork_server import ForkServer
from planner.runtime.limits import UNLIMITED
from planner.runtime.messages import Answer as ChildAnswer
from planner.runtime.messages import AnswerWriter, Task
from planner.runtime.running import StoppedError
from planner.truth.calibration.interval import Calibration
from planner.verdict import worst


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
    cache_releases: int = 0
    """The most of any rank class."""
    whole: bool = True
    """False: one rank class exceeds its GPU, and the others were not planned."""
    step_seconds: float = 0.0
    """Of the slowest rank class, and `tokens_per_second` of each GPU by it; 0: not known."""
    tokens_per_second: float = 0.0

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
Answers = tuple[Answer, ...]
"""Of the jobs of a group, in their order."""


class Plans(Protocol):
    """Whatever makes plans of candidates."""

    @property
    def processes(self) -> int:
        """How many groups are planned at a time."""

    @property
    def is_over(self) -> bool:
        """Whether no plan will be begun any more."""

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[Answers]:
        """The answers for jobs with one trace, in their order; the future raises OutOfTimeError. `whole`: every rank
        class is planned, even where one exceeds already."""


class OutOfTimeError(Exception):
    """The deadline came, or somebody stopped the search, before the plan was made."""


_Key = TypeVar("_Key")


def plan_in_turn(
    plans: Plans,
    next_group: Callable[[], tuple[_Key, Sequence[Job]] | None],
    *,
    whole: bool = False,
    tell: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[_Key, Answers]]:
    """Groups with their answers, as they come; as many are planned at a time as `plans` has processes. `next_group` is
    asked for the next one whenever there is room, `tell` told how many are being planned. Raises OutOfTimeError."""
    planned: dict[Future[Answers], _Key] = {}
    while True:
        while len(planned) < plans.processes and (group := next_group()) is not None:
            key, jobs = group
            planned[plans.submit(jobs, whole=whole)] = key
        if not planned:
            return
        tell(len(planned))
        done, _ = wait(planned, return_when=FIRST_COMPLETED)
        late = [future for future in done if isinstance(future.exception(), OutOfTimeError)]
        for future in done.difference(late):
            yield planned.pop(future), future.result()
        if late:
            raise OutOfTimeError


@dataclass(slots=True)
class KnownAnswers:
    """Plans that answers for groups that were planned before, and has others planned."""

    plans: Plans
    known: dict[str, Answers] = field(default_factory=dict)
    """By the jobs of a group."""

    @property
    def processes(self) -> int:
        return self.plans.processes

    @property
    def is_over(self) -> bool:
        return self.plans.is_over

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[Answers]:
        """As :class:`Plans` says; a whole answer serves where less is asked for."""
        # The same for the same jobs in any process; metadata are no part of it.
        name = hashlib.sha256("".join(trace_id(job, {}) for job in jobs).encode()).hexdigest()[:32]
        known = self.known.get(name)
        if known is not None and (not whole or all(isinstance(answer, Refused) or answer.whole for answer in known)):
            future: Future[Answers] = Future()
            future.set_result(known)
            return future

        def keep(done: Future[Answers]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.known[name] = done.result()

        future = self.plans.submit(jobs, whole=whole)
        future.add_done_callback(keep)
        return future


def to_json(known: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """As :func:`from_json` reads it."""
    return {
        name: [{"refused": answer.reason} if isinstance(answer, Refused) else asdict(answer) for answer in answers]
        for name, answers in dict(known).items()
    }


def from_json(document: Mapping[str, Any]) -> dict[str, Answers]:
    """The answers by the names of their groups."""

    def read(answer: Mapping[str, Any]) -> Answer:
        if "refused" in answer:
            return Refused(answer["refused"])
        return Exact(**{**answer, "verdict": Verdict(answer["verdict"])})

    return {name: tuple(map(read, answers)) for name, answers in document.items()}


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs with one trace: they differ in the allocator's settings, or in GPUs of one architecture. It is that of the
    job whose GPU has most multiprocessors: of MIG slices, which have fewer, some kernels take less scratch memory."""

    jobs: tuple[Job, ...]
    calibration: Calibration
    source: TraceSource = USUAL_SOURCE
    whole: bool = False
    """Plan every rank class even where one exceeds already."""


class _Overdue(BaseException):
    """Not an Exception: what a trace catches of a job's code is none of it."""


_AGAIN_SECONDS = 5.0
"""A finalizer in which it was raised has swallowed it: then it is raised once more."""


@contextmanager
def _ended_at(deadline: float) -> Iterator[None]:
    """Ends what runs inside at this time of the monotonic clock, as Ctrl-C would, with OutOfTimeError; only the main
    thread can be ended."""
    if deadline == float("inf") or threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = True

    def end(*_: object) -> None:
        if ends:
            raise _Overdue

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.001), _AGAIN_SECONDS)
    try:
        yield
    except _Overdue:
        raise OutOfTimeError from None
    finally:
        ends = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@dataclass(slots=True)
class PlansHere:
    """Plans groups in this process, one after the other. In the main thread a trace that has begun is ended at the
    deadline: nothing may be traced in this process after that."""

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

    def submit(self, jobs: Sequence[Job], *, whole: bool = False) -> Future[Answers]:
        future: Future[Answers] = Future()
        try:
            if self.is_over:
                raise OutOfTimeError
            group = Group(tuple(jobs), self.calibration, self.source, whole)
            with _ended_at(self.deadline):
                future.set_result(plan_here(group, lambda: self.is_over))
            self.count += 1
        except OutOfTimeError as error:
            future.set_exception(error)
        return future


_ANSWERS = "answers"


def plan_group(group: Group, answer: AnswerWriter) -> None:
    """The child's side of planning a group in a process of its own."""
    answer.write(_ANSWERS, pickle.dumps(plan_here(group)))


def answers_of(answer: ChildAnswer, jobs: int) -> Answers:
    """What the child of :func:`plan_group` answered for so many jobs."""
    if _ANSWERS not in answer.parts:
        return (Refused(f"planning it ended with {messages.ending(answer)}"),) * jobs
    answers: Answers = pickle.loads(answer.parts[_ANSWERS])
    return answers


@dataclass(slots=True)
class ExactPlans:
    """Plans groups in so many processes at a time; to be used as a context, at whose end no child is left."""

    processes: int
    calibration: Calibration = field(default_factory=Calibration.none)
    source: TraceSource = USUAL_SOURCE
    deadline: float = float("inf")
    """By time.monotonic()."""
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
        task = Task(f"{__name__}:plan_group", group)
        answer = running.run(task, UNLIMITED, server=self._server, stopped=lambda: self.is_over)
        if isinstance(answer.exceeded, StoppedError):
            raise OutOfTimeError
        messages.raise_failure(answer)
        return answers_of(answer, len(group.jobs))


def plan_here(group: Group, is_over: Callable[[], bool] = lambda: False) -> Answers:
    """The answers for a group, in this process: what the plan of each job says. Raises OutOfTimeError where it is over
    before the last rank class is traced."""
    if group.jobs[0].trainer is not None:
        return tuple(_plan_trainer(job, group, is_over) for job in group.jobs)
    statements: list[list[RankClassStatement]] = [[] for _ in group.jobs]
    traced: list[RankTrace] = []
    classes = rank_classes(Mesh.of(group.jobs[0].parallel))
    traced_job = max(group.jobs, key=lambda job: multiprocessors_of(job.cluster.gpu.target))
    try:
        for job in group.jobs:
            planned_classes.refuse_unplannable(job)
        for planned, rank_class in enumerate(classes, start=1):
            if is_over():
                raise OutOfTimeError
            for trace in planned_classes.trace_class(traced_job, rank_class, source=group.source):
                traced.append(trace)
                known: dict[str, RankClassStatement] = {}  # by the allocator's settings
                for job, of_job in zip(group.jobs, statements, strict=True):
                    conf = job.allocator.conf
                    if conf in known:
                        of_job.append(judging.judge_elsewhere(job, trace, group.calibration, known[conf]))
                    else:
                        of_job.append(judging.judge_trace(job, trace, group.calibration).statement)
                        if not of_job[-1].cache_releases:
                            known[conf] = of_job[-1]
            exceeds = all(any(one.verdict is Verdict.EXCEEDS for one in of_job) for of_job in statements)
            if exceeds and not group.whole:
                return tuple(_summarize(of_job, whole=planned == len(classes)) for of_job in statements)
    except PlannerError as error:
        return (Refused(error.problem),) * len(group.jobs)
    answers = []
    for job, of_job in zip(group.jobs, statements, strict=True):
        answers.append(_summarize(of_job, whole=True, host=_verdict_of_hosts(job, group.calibration, of_job, traced)))
    return tuple(answers)


def _plan_trainer(job: Job, group: Group, is_over: Callable[[], bool]) -> Answer:
    """What the plan says of one whose program is run: what it allocates may hang on its allocator's settings."""
    if is_over():
        raise OutOfTimeError
    try:
        plan = plan_job(job, group.calibration, source=group.source).plan
    except PlannerError as error:
        return Refused(error.problem)
    return _summarize(plan.rank_classes, whole=True, host=worst([plan.host_verdict, plan.pool_verdict]))


def _verdict_of_hosts(
    job: Job, calibration: Calibration, statements: Sequence[RankClassStatement], traced: Sequence[RankTrace]
) -> Verdict:
    """Of the nodes, where the job says what they have or their memory is that of the GPUs."""
    gpu, cluster = catalog.by_name(job.cluster.gpu.name), job.cluster
    if not cluster.host_memory and (gpu is None or gpu.pool is None):
        return Verdict.FITS
    host = state_job_hosts(inputs_of_job(job, calibration), [share_of_class(job, trace) for trace in traced])
    pool = state_pool(cluster.gpu.name, statements, host, cluster.gpus_per_node)
    on_hosts = Verdict.EXCEEDS if host.exceeds else Verdict.FITS
    return worst([on_hosts, pool.verdict if pool else Verdict.FITS])


def _summarize(statements: Sequence[RankClassStatement], *, whole: bool, host: Verdict = Verdict.FITS) -> Exact:
    fullest = max(statements, key=lambda one: one.peak.device_bytes)
    slowest = slowest_step(statements)
    return Exact(
        verdict=worst([*(one.verdict for one in statements), host]),
        device_bytes=fullest.peak.device_bytes,
        allocated_bytes=max(one.peak.allocated_bytes + one.outside_allocator.total_bytes for one in statements),
        headroom_bytes=min(one.headroom_bytes for one in statements),
        capacity_bytes=fullest.capacity_bytes,
        rank_classes=len(statements),
        cache_releases=max(one.cache_releases for one in statements),
        whole=whole,
        step_seconds=slowest.seconds if slowest else 0.0,
        tokens_per_second=slowest.tokens_per_second if slowest else 0.0,
    )
