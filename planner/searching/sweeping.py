"""A sweep: a plan of every point of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from planner.errors import SpecError
from planner.job.schema import Job
from planner.planning.planned_classes import Progress
from planner.searching.exact_plans import Exact, OutOfTimeError, Plans, Refused, plan_in_turn
from planner.searching.space import Space
from planner.searching.weighing import look_at

STEP = "1"
"""Of the ranges of a sweep, which is of every point; a search doubles."""
MOST_POINTS = 2_000
"""Of a sweep, every one of which is planned or excluded by its bound."""


@dataclass(slots=True)
class Point:
    """One point of the grid; exactly one of the three is said, none where the sweep ended before it."""

    labels: tuple[str, ...]
    exact: Exact | None = None
    least_bytes: int = 0
    """It exceeds its GPU whatever a plan would say: at least so many bytes."""
    refused: str = ""
    """Why it is not a job, or cannot be planned."""

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


def sweep(space: Space, plans: Plans, progress: Progress = lambda _: None) -> Sweep:
    """Plans every point. Raises SpecError for more points than anybody waits for."""
    if space.size > MOST_POINTS:
        raise SpecError(
            f"the sweep has {space.size:,} points, each of which is planned",
            allowed=f"at most {MOST_POINTS:,}",
            remedy="take fewer values (1..64:8 takes steps, 1..64:x2 doubles); "
            "planner search finds the best of many without planning them all",
        )
    result = Sweep(space, [])
    groups: dict[tuple[object, ...], tuple[list[Point], list[Job]]] = {}
    """Points that share a trace."""
    for number in range(space.size):
        candidate, rule, explanation, bound = look_at(space, number)
        point = Point(space.labels(number), refused=explanation or rule)
        result.points.append(point)
        if candidate is None or bound is None:
            continue
        if bound.exceeds:
            point.least_bytes = bound.least_bytes
            continue
        points, jobs = groups.setdefault(space.traced_key(candidate), ([], []))
        points.append(point)
        jobs.append(candidate.job)
    total = sum(len(jobs) for _, jobs in groups.values())

    def tell(_: int) -> None:
        progress(f"planned {result.planned} of {total} points")

    try:
        for points, answers in plan_in_turn(plans, partial(next, iter(groups.values()), None), whole=True, tell=tell):
            result.planned += len(points)
            for point, answer in zip(points, answers, strict=True):
                if isinstance(answer, Refused):
                    point.refused = answer.reason
                else:
                    point.exact = answer
    except OutOfTimeError:
        result.stopped = "time"
    except KeyboardInterrupt:
        result.stopped = "interrupted"
    return result
