"""The search: candidates in the order of what they could be at best, each decided by a plan."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from planner.job.schema import Gpu
from planner.report.statement import Verdict
from planner.searching.exact_plans import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.space import Candidate, Space
from planner.searching.weighing import MOST_LOOKED_AT, Cost, Objective, Progress, Scales, Weighed, weigh

_SIZES = ("micro_batch_size", "sequence_length")


@dataclass(slots=True)
class Exceeded:
    """Sizes that are too large, by everything else."""

    sizes: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, space: Space, candidate: Candidate) -> None:
        """Remember one whose tensors exceed its GPU."""
        if candidate.job.parallel.pp.degree == 1:
            self.sizes.setdefault(_others(space, candidate), []).append(_size(candidate))

    def covers(self, space: Space, number: int) -> bool:
        """Whether the candidate is at least as large as one of those, and the same in all else."""
        if not self.sizes:
            return False
        candidate = space.candidate(number)
        if isinstance(candidate, str):
            return False
        batch, tokens = _size(candidate)
        known = self.sizes.get(_others(space, candidate), ())
        return any(batch >= smaller and tokens >= shorter for smaller, shorter in known)


def _size(candidate: Candidate) -> tuple[int, int]:
    return candidate.job.train.micro_batch_size, candidate.job.train.sequence_length


def _others(space: Space, candidate: Candidate) -> tuple[object, ...]:
    several = candidate.job.train.gradient_accumulation_steps > 1
    return (
        *(each for axis, each in zip(space.axes, candidate.choice, strict=True) if axis.name not in _SIZES),
        several,
    )


_USUAL_RATIO = 1.25
"""Of the bytes of a plan to those of its bound, before any plan is made."""
_LATEST = 9
"""Plans that the ratio is the median of."""

_ALIKE = 200
"""Groups of the best rank of which the most usual, and of those the quickest, is planned first: the roofline tells the
best few hundred of thousands no further apart than it is wrong by."""

Rank = tuple[float, int]
_Entry = tuple[Rank, list[Weighed]]


class Waiting:
    """Groups of candidates with one trace each, those that are likely to fit before the others."""

    def __init__(self, groups: Sequence[list[Weighed]]) -> None:
        """A group is sorted by rank."""
        self._entries: list[_Entry] = [(group[0].rank, group) for group in groups]
        self._ratios: deque[float] = deque([_USUAL_RATIO], maxlen=_LATEST)
        self._is_anything_found = False
        self._sort()

    @property
    def count(self) -> int:
        return len(self._likely) + len(self._doubtful)

    def take(self, last: Rank, enough: bool) -> list[Weighed]:
        """The group to plan next; none where nothing that waits ranks before `last`. `enough`: as many were found as
        are wanted, so that only what could displace them counts."""
        for heap in (self._likely, self._doubtful):
            if heap and (not enough or heap[0][0] < last):
                return self._next(heap, last if enough else None)
        return []

    def _next(self, heap: list[_Entry], last: Rank | None) -> list[Weighed]:
        """Of the best the most usual, and of those the quickest; before anything is found of all of them: that is an
        answer soon, and one that somebody asked for."""
        alike = heap if not self._is_anything_found else heapq.nsmallest(_ALIKE, heap)
        entry = min(
            (each for each in alike if last is None or each[0] < last),
            key=lambda each: (each[1][0].unusual, each[1][0].effort, each[0]),
        )
        heap.remove(entry)
        heapq.heapify(heap)
        return entry[1]

    def found(self) -> None:
        """Something fits: from now on rank comes first."""
        self._is_anything_found = True

    def learn(self, least_bytes: int, planned_bytes: int) -> None:
        """What a plan said, beside its bound."""
        self._ratios.append(planned_bytes / max(least_bytes, 1))
        self._entries = [*self._likely, *self._doubtful]
        self._sort()

    def better_than(self, last: Rank) -> int:
        """Candidates that rank before `last`."""
        return sum(each.rank < last for heap in (self._likely, self._doubtful) for _, group in heap for each in group)

    def _sort(self) -> None:
        ratio = statistics.median(self._ratios)
        self._likely = [each for each in self._entries if _fits(each[1], ratio)]
        self._doubtful = [each for each in self._entries if not _fits(each[1], ratio)]
        heapq.heapify(self._likely)
        heapq.heapify(self._doubtful)


def _fits(group: Sequence[Weighed], ratio: float) -> bool:
    return any(each.least_bytes * ratio <= each.capacity_bytes for each in group)


_WEIGHING_SHARE = 0.5
"""Of the time, at most, for looking through candidates."""


_TRACE_SECONDS = 3.0
"""An 8B model by FSDP2, with its replay; tensor parallelism and pipelines are slower (docs/results/performance.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate with its plan."""

    candidate: Candidate
    exact: Exact
    cost: Cost | None
    value: float
    """Of the objective."""

    @property
    def rank(self) -> tuple[float, int]:
        return self.value, self.candidate.index


@dataclass(slots=True)
class SearchResult:
    """What a search found and what it did for it."""

    space: Space
    objective: Objective
    scales: Scales
    rows: list[Row] = field(default_factory=list)
    """Candidates that fit, the best first; as many as were asked for."""
    planned: int = 0
    """Candidates that a plan decided."""
    traced: int = 0
    """Plans that were made for them: those that share a trace are one."""
    left_out: int = 0
    """Candidates that were not planned since a smaller one exceeds its GPU by its tensors alone."""
    undecided: int = 0
    """Candidates whose rank is better than that of the last one that was found, and that no time was left for."""
    refused: dict[str, int] = field(default_factory=dict)
    """Why candidates could not be planned, and how many."""
    closest: Row | None = None
    """Of those that do not fit, the one that lacks the fewest bytes."""
    stopped: str = ""
    """Why it ended before its end: `time`, `interrupted` or `cancelled`; empty if it did not."""
    doing: str = ""
    """What is done now, of how much, for people."""
    traces_left: int = 0
    """Of those that are known to be worth one."""
    seconds: float = 0.0
    first_seconds: float | None = None
    """Until the first candidate that fits."""

    @property
    def complete(self) -> bool:
        """Whether no candidate of those that were looked at could be better."""
        return not self.stopped


Watch = Callable[[SearchResult], None]
"""Called every moment with what is known by then, so that it can be shown before the search ends."""


def search(
    space: Space,
    plans: Plans,
    *,
    objective: Objective = Objective.COST,
    top: int = 10,
    time_left: float = float("inf"),
    most: int = MOST_LOOKED_AT,
    any_fit: bool = False,
    progress: Progress = lambda _: None,
    watch: Watch = lambda _: None,
    note: Progress = lambda _: None,
) -> SearchResult:
    """The best `top` candidates that fit; with `any_fit` the first that are found, whatever could be better. `note`
    is told before the first plan where the time will not be enough. Raises SpecError for a space that its rules leave
    empty."""
    began = time.monotonic()
    scales = Scales(space.size)
    result = SearchResult(space, objective, scales)

    def tell(what: str) -> None:
        result.doing, result.seconds = what, time.monotonic() - began
        progress(what)
        watch(result)

    run = _Run(space, plans, objective, top, any_fit, tell, result, began)
    try:
        weigh(space, objective, scales, tell, most, lambda: _is_weighed_enough(plans, began, time_left))
        if (expected := len(scales.groups) * _TRACE_SECONDS / plans.processes) > time_left:
            note(_not_all(scales, expected, time_left))
        run.decide(list(scales.groups.values()))
    except KeyboardInterrupt:
        result.stopped = "interrupted"
    if not scales.in_time and not result.stopped:
        result.stopped = "time"
    result.seconds = time.monotonic() - began
    return result


@dataclass(slots=True)
class _Run:
    space: Space
    plans: Plans
    objective: Objective
    top: int
    any_fit: bool
    tell: Progress
    result: SearchResult
    began: float
    exceeded: Exceeded = field(default_factory=Exceeded)

    def decide(self, groups: Sequence[list[Weighed]]) -> None:
        """Plan what is likely to fit, the best first, until enough is found; then what could still be better."""
        waiting = Waiting(groups)
        flying: dict[Future[tuple[Answer, ...]], list[Weighed]] = {}
        while True:
            while len(flying) < self.plans.processes and (taken := waiting.take(self._last_rank(), self._is_full)):
                group = self._still_open(taken)
                if group:
                    flying[self.plans.submit([self._candidate(each).job for each in group])] = group
            if not flying:
                return
            self.result.traces_left = waiting.count + len(flying)
            self.tell(_planning(self.result, self.top))
            done, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in done:
                self._take(flying.pop(future), future, waiting)
            if self.result.stopped:
                self.result.undecided = waiting.better_than(self._last_rank())
                return

    @property
    def _is_full(self) -> bool:
        return len(self.result.rows) >= self.top

    def _last_rank(self) -> tuple[float, int]:
        """What a candidate has to be better than."""
        if not self._is_full:
            return float("inf"), 0
        return (float("-inf"), 0) if self.any_fit else self.result.rows[-1].rank

    def _still_open(self, group: list[Weighed]) -> list[Weighed]:
        kept = [each for each in group if not self.exceeded.covers(self.space, each.number)]
        self.result.left_out += len(group) - len(kept)
        return kept

    def _candidate(self, weighed: Weighed) -> Candidate:
        found = self.space.candidate(weighed.number)
        assert isinstance(found, Candidate)
        return found

    def _take(self, group: list[Weighed], future: Future[tuple[Answer, ...]], waiting: Waiting) -> None:
        try:
            answers = future.result()
        except OutOfTimeError:
            self.result.stopped = "time"
            return
        self.result.traced += 1
        self.result.planned += len(group)
        fitting: dict[Gpu, Row] = {}
        for weighed, answer in zip(group, answers, strict=True):
            if isinstance(answer, Refused):
                self.result.refused[answer.reason] = self.result.refused.get(answer.reason, 0) + 1
                continue
            row = self._row(weighed, answer)
            if answer.whole:
                waiting.learn(weighed.least_bytes, answer.device_bytes)
            if not answer.fits:
                self._remember(row)
                continue
            gpu = row.candidate.job.cluster.gpu
            fitting[gpu] = min((row, fitting.get(gpu, row)), key=_preference)
        for row in fitting.values():
            waiting.found()
            self._keep(row)

    def _row(self, weighed: Weighed, exact: Exact) -> Row:
        value = self.objective.of(weighed.cost, exact)
        return Row(candidate=self._candidate(weighed), exact=exact, cost=weighed.cost, value=value)

    def _remember(self, row: Row) -> None:
        """One that does not fit."""
        if row.exact.surely_exceeds:
            self.exceeded.add(self.space, row.candidate)
        closest = self.result.closest
        if row.exact.whole and (closest is None or row.exact.headroom_bytes > closest.exact.headroom_bytes):
            self.result.closest = row

    def _keep(self, row: Row) -> None:
        rows = self.result.rows
        rows.append(row)
        rows.sort(key=lambda each: each.rank)
        del rows[self.top :]
        if row in rows:
            if self.result.first_seconds is None:
                self.result.first_seconds = time.monotonic() - self.began
            self.tell(_planning(self.result, self.top))


def _is_weighed_enough(plans: Plans, began: float, time_left: float) -> bool:
    return plans.is_over or time.monotonic() - began >= time_left * _WEIGHING_SHARE


def _not_all(scales: Scales, expected: float, time_left: float) -> str:
    return (
        f"{scales.left:,} candidates may fit, and their {len(scales.groups):,} plans would take {expected:,.0f} s at"
        f" least; {time_left:.0f} s are for the most usual of them. Fix axes (tp=1 pp=1 cp=1) for fewer, or give more"
        " --time"
    )


def _planning(result: SearchResult, top: int) -> str:
    best = f", best so far: {describe(result.rows[0].candidate)}" if result.rows else ""
    return (f"planned {result.planned} of {result.scales.left:,} candidates ({result.traces_left:,} traces left),"
            f" {len(result.rows)} of {top} found{best}")  # fmt: skip


def _preference(row: Row) -> tuple[int, float, int]:
    """Of candidates that differ in the allocator's settings alone one is shown: that which fits without being tight."""
    return list(Verdict).index(row.exact.verdict), *row.rank


def describe(candidate: Candidate) -> str:
    """What is different from the job, in a few words."""
    return ", ".join(f"{_short(key)} {value}" for key, value in candidate.change.items()) or "the job itself"


def _short(key: str) -> str:
    *_, section, last = key.split(".")
    return section if last == "degree" else last
