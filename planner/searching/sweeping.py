"""A sweep: a plan of every point of a grid."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.job.bound.lower_bound import lower_bound
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.space import UNTRACED, Candidate, Space, broken_rule

MOST_POINTS = 2_000
"""Of a sweep, every one of which is planned or excluded by its bound."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class Point:
    """One point of the grid; exactly one of the four is said, none where the sweep ended before it."""

    number: int
    labels: tuple[str, ...]
    exact: Exact | None = None
    least_bytes: int = 0
    """It exceeds its GPU whatever a plan would say: at least so many bytes."""
    refused: str = ""
    """Why it is no job, or cannot be planned."""

    @property
    def verdict(self) -> str:
        if self.exact is not None:
            return self.exact.verdict.value
        return "exceeds" if self.least_bytes else "refused" if self.refused else "not reached"


@dataclass(slots=True)
class Sweep:
    """All points, in the order of the grid: the last axis turns fastest."""

    space: Space
    points: list[Point]
    planned: int = 0
    stopped: str = ""
    groups: dict[tuple[object, ...], list[tuple[Point, Candidate]]] = field(default_factory=dict)


def sweep(space: Space, plans: Plans, progress: Progress = lambda _: None) -> Sweep:
    """Plans every point. Raises SpecError for more points than anybody waits for."""
    if space.size > MOST_POINTS:
        raise SpecError(
            f"the sweep has {space.size:,} points, each of which is planned",
            allowed=f"at most {MOST_POINTS:,}",
            remedy="take fewer values; planner search finds the best of many without planning them all",
        )
    found = Sweep(space, [_look_at(space, number) for number in range(space.size)])
    for point in found.points:
        candidate = space.candidate(point.number)
        if not point.refused and not point.least_bytes and isinstance(candidate, Candidate):
            found.groups.setdefault(_traced_key(space, candidate), []).append((point, candidate))
    try:
        _plan(found, plans, progress)
    except KeyboardInterrupt:
        found.stopped = "interrupted"
    return found


def _look_at(space: Space, number: int) -> Point:
    labels = tuple(axis.labels[each] for axis, each in zip(space.axes, space.choice(number), strict=True))
    candidate = space.candidate(number)
    if isinstance(candidate, str):
        return Point(number, labels, refused=candidate)
    rule, said = broken_rule(candidate.job)
    if rule:
        return Point(number, labels, refused=said or rule)
    bound = lower_bound(candidate.job)
    return Point(number, labels, least_bytes=bound.least_bytes if bound.exceeds else 0)


def _traced_key(space: Space, candidate: Candidate) -> tuple[object, ...]:
    traced = (each for axis, each in zip(space.axes, candidate.choice, strict=True) if axis.name not in UNTRACED)
    return (*traced, candidate.job.cluster.gpu.arch)


def _plan(found: Sweep, plans: Plans, progress: Progress) -> None:
    waiting = deque(found.groups.values())
    total = sum(map(len, waiting))
    futures: dict[Future[tuple[Answer, ...]], list[tuple[Point, Candidate]]] = {}
    while waiting or futures:
        while waiting and len(futures) < plans.processes:
            group = waiting.popleft()
            futures[plans.submit([candidate.job for _, candidate in group], whole=True)] = group
        progress(f"planned {found.planned} of {total} points")
        done, _ = wait(futures, return_when=FIRST_COMPLETED)
        for future in done:
            if not _take(found, futures.pop(future), future):
                return


def _take(found: Sweep, group: list[tuple[Point, Candidate]], future: Future[tuple[Answer, ...]]) -> bool:
    try:
        answers = future.result()
    except OutOfTimeError:
        found.stopped = "time"
        return False
    for (point, _), answer in zip(group, answers, strict=True):
        found.planned += 1
        if isinstance(answer, Refused):
            point.refused = answer.reason
        else:
            point.exact = answer
    return True
