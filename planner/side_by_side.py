"""The rank classes of a large job, planned by several processes side by side.

This process traces too. It and its children take one class after the other from a queue, which is a pipe with all of
their numbers in it; whatever a child did not bring to an end is done here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from planner import planning
from planner.allocator.replay import replay
from planner.allocator.timeline import Timeline
from planner.calibration.interval import Calibration
from planner.layout.mesh import Mesh
from planner.layout.rank_classes import RankClass, rank_classes
from planner.planning import Planned, Progress, RankTrace
from planner.report.statement import RankClassStatement, Seconds
from planner.spec.job import Job
from planner.tracing.isolated import USUAL_LIMITS, Limits

FEWEST = 4
"""Rank classes of a job that is worth a second process: one takes as long to start as to plan one or two of them."""
MOST = 8
_ROOT = Path(__file__).parents[1]
_CHILD = "import sys; sys.path.append(sys.argv[1]); from planner import side_by_side; side_by_side.help_out()"
_NUMBER = 2  # bytes of a class's number in the queue
_NO_TIMELINE = replay(())


@dataclass(frozen=True, slots=True)
class _Work:
    """What a child is told."""

    job: Job
    calibration: Calibration
    limits: Limits
    keep_traces: bool
    queue: int
    parent: int


@dataclass(frozen=True, slots=True)
class _Class:
    """What became of a rank class: for each of its parts the trace, without its events if they are not kept."""

    traces: tuple[RankTrace, ...]
    judgements: tuple[tuple[RankClassStatement, Timeline], ...]
    replay_seconds: float


def usable() -> int:
    """How many processes of this kind the machine has room for."""
    return min(len(os.sched_getaffinity(0)), MOST)


def planned(
    job: Job,
    calibration: Calibration | None = None,
    progress: Progress = lambda _: None,
    limits: Limits = USUAL_LIMITS,
    *,
    processes: int,
    keep_traces: bool = True,
) -> Planned:
    """As `planning.planned`, with at most so many processes; fewer for a job with few rank classes.

    If traces are not kept, a plan made by several has neither traces nor timelines.
    """
    classes = rank_classes(Mesh.of(job.parallel))
    several = min(processes, len(classes) // 2)
    if several < 2 or len(classes) < FEWEST:
        return planning.planned(job, calibration, progress, limits)
    planning.refuse_unplannable(job)
    known = Calibration.none() if calibration is None else calibration
    began = time.perf_counter()
    with _queue(len(classes)) as queue:
        work = _Work(job, known, limits, keep_traces, queue, os.getpid())
        with _Children(work, several - 1) as children:
            found = {number: _of_class(work, classes[number], progress) for number in _numbers(queue)}
            progress("waiting for the last rank classes")
            found.update(children.found())
    for number in range(len(classes)):
        if number not in found:
            found[number] = _of_class(work, classes[number], progress)
    return _together(work, [found[number] for number in range(len(classes))], time.perf_counter() - began)


def help_out() -> None:
    """The child's side: results go to its standard output, one after the other."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a traced program prints is no answer
    work: _Work = pickle.load(sys.stdin.buffer)
    from planner.tracing import trace  # noqa: F401, before a class is taken that the parent could have done meanwhile

    classes = rank_classes(Mesh.of(work.job.parallel))
    for number in _numbers(work.queue):
        if os.getppid() != work.parent:
            break
        pickle.dump((number, _of_class(work, classes[number])), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
    os._exit(0)


def _of_class(work: _Work, rank_class: RankClass, progress: Progress = lambda _: None) -> _Class:
    traces: list[RankTrace] = []
    judgements: list[tuple[RankClassStatement, Timeline]] = []
    replayed = 0.0
    for each in planning.traces_of_class(work.job, rank_class, progress, work.limits):
        began = time.perf_counter()
        statement, timeline = planning.judge(work.job, each, work.calibration)
        replayed += time.perf_counter() - began
        traces.append(each if work.keep_traces else replace(each, trace=replace(each.trace, events=())))
        judgements.append((statement, timeline if work.keep_traces else _NO_TIMELINE))
    return _Class(tuple(traces), tuple(judgements), replayed)


def _together(work: _Work, found: Sequence[_Class], total: float) -> Planned:
    traces = [trace for each in found for trace in each.traces]
    statements = [judgement for each in found for judgement in each.judgements]
    # Trace and replay add up the seconds of all processes; the total is by the clock.
    traced = sum(each.trace.seconds for each in traces)
    seconds = Seconds(trace=traced, replay=sum(each.replay_seconds for each in found), total=total)
    whole = planning.together(work.job, traces, statements, work.calibration, seconds)
    return whole if work.keep_traces else replace(whole, traces=(), timelines=())


@contextlib.contextmanager
def _queue(count: int) -> Iterator[int]:
    """A pipe that holds the numbers up to `count` and then ends."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"".join(number.to_bytes(_NUMBER, "big") for number in range(count)))
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _numbers(queue: int) -> Iterator[int]:
    """The next number that nobody has taken, until there is none."""
    while taken := os.read(queue, _NUMBER):
        yield int.from_bytes(taken, "big")


@dataclass(slots=True)
class _Children:
    """Processes that help; they are ended when the plan is made or has failed."""

    work: _Work
    count: int
    _running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = field(default_factory=list)

    def __enter__(self) -> _Children:
        for _ in range(self.count):
            answers = tempfile.TemporaryFile()
            with tempfile.TemporaryFile() as told:
                pickle.dump(self.work, told)
                told.seek(0)
                child = subprocess.Popen(
                    [sys.executable, "-P", "-c", _CHILD, str(_ROOT)],
                    stdin=told, stdout=answers, stderr=subprocess.DEVNULL, pass_fds=(self.work.queue,),
                )  # fmt: skip
            self._running.append((child, answers))
        return self

    def found(self) -> Iterator[tuple[int, _Class]]:
        """What the children brought to an end; it waits for them."""
        for child, answers in self._running:
            child.wait()
            answers.seek(0)
            # One that was killed leaves half a result at the most.
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                while True:
                    yield pickle.load(answers)

    def __exit__(self, *_: object) -> None:
        for child, answers in self._running:
            child.kill()
            child.wait()
            answers.close()
