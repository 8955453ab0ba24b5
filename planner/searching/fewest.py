"""The fewest GPUs on which a job fits in some layout, its global batch as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.job.schema import Job
from planner.searching.engine import Row, SearchResult, search
from planner.searching.exact import Plans
from planner.searching.objectives import Objective
from planner.searching.space import Space, least_axes

MOST_GPUS = 4096

Progress = Callable[[str], None]


@dataclass(slots=True)
class Fewest:
    """The answer: `gpus` is 0 where none of the numbers that were tried is enough."""

    gpus: int = 0
    row: Row | None = None
    tried: dict[int, str] = field(default_factory=dict)
    """Numbers of GPUs that are not enough, and why."""
    closest: Row | None = None
    stopped: str = ""
    """`time` or `interrupted`: then smaller numbers than the answer were decided, and larger ones were not tried."""


def fewest(
    job: Job,
    plans: Plans,
    *,
    global_batch: int,
    per_node: int,
    most: int = MOST_GPUS,
    deadline: float = float("inf"),
    progress: Progress = lambda _: None,
) -> Fewest:
    """The fewest GPUs: numbers are tried in ascending order, and each is decided before the next."""
    found = Fewest()
    for gpus in gpu_counts(most, per_node):
        try:
            result = _search(job, plans, gpus, min(gpus, per_node), global_batch, deadline, progress)
        except SpecError as error:
            found.tried[gpus] = error.problem
            continue
        found.stopped = result.stopped
        if result.rows:
            found.gpus, found.row = gpus, result.rows[0]
            return found
        found.closest = result.closest or found.closest
        found.tried[gpus] = _why(result)
        if result.stopped:
            break
    return found


def gpu_counts(most: int, per_node: int) -> Iterator[int]:
    """Numbers of GPUs that are tried, ascending: powers of two in a node, then whole nodes, of more than eight those
    that are a power of two or half as many again."""
    count = 1
    while count < min(per_node, most + 1):
        yield count
        count *= 2
    nodes = 1
    while nodes * per_node <= most:
        yield nodes * per_node
        power = 1 << (nodes.bit_length() - 1)
        nodes += 1 if nodes < 8 else power // 2


def _search(
    job: Job, plans: Plans, gpus: int, per_node: int, global_batch: int, deadline: float, progress: Progress
) -> SearchResult:
    space = Space(base=job, axes=tuple(least_axes(job, gpus, per_node)), global_batch=global_batch)
    left = deadline - time.monotonic()

    def tell(what: str) -> None:
        progress(f"{gpus} GPUs: {what}")

    return search(space, plans, objective=Objective.MEMORY, top=1, time_left=left, any_fit=True, progress=tell)


def _why(result: SearchResult) -> str:
    if not result.scales.left:
        return "parameters, optimizer state and what a forward saves are too much in every layout"
    if result.stopped:
        return f"undecided: {result.planned} of {result.scales.left} candidates were planned"
    return f"none of {result.scales.left} candidates fits"
