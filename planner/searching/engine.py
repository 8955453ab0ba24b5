"""The search: candidates in the order of what they could be at best, each decided by a plan.

It ends when no candidate that is left can be better than those that were found, so that the answer is that of planning
them all; or when its time is over, and then it says what it did not get to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from planner.job.schema import Gpu
from planner.report.statement import Verdict
from planner.searching.exact import Answer, Exact, OutOfTimeError, Plans, Refused
from planner.searching.exceeded import Exceeded
from planner.searching.objectives import Objective
from planner.searching.roofline import Cost
from planner.searching.space import Candidate, Space
from planner.searching.waiting import Waiting
from planner.searching.weighing import MOST_LOOKED_AT, Progress, Scales, Weighed, weigh

_WEIGHING_SHARE = 0.5
"""Of the time, at most, for looking through candidates."""


_TRACE_SECONDS = 3.0
"""Of an 8B model by FSDP2, with its replay; tensor parallelism and pipelines take longer (docs/performance.md)."""


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
