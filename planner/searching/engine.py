"""The search: candidates in the order of what they could be at best, each decided by a plan."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.job.schema import Gpu, Job
from planner.planning.planned_classes import Progress
from planner.report.statement import Verdict
from planner.searching.exact_plans import Answers, Exact, OutOfTimeError, Plans, Refused, plan_in_turn
from planner.searching.space import Candidate, Space
from planner.searching.weighing import MOST_LOOKED_AT, Objective, Scales, Weighed, weigh

_SIZES = ("micro_batch_size", "sequence_length")


@dataclass(slots=True)
class Exceeded:
    """Sizes that are too large, by everything else."""

    sizes: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, space: Space, candidate: Candidate) -> None:
        """Remember one whose tensors exceed its GPU."""
        if candidate.job.parallel.pp.degree == 1:
            others, size = _others_and_size(space, candidate)
            self.sizes.setdefault(others, []).append(size)

    def covers(self, space: Space, number: int) -> bool:
        """Whether the candidate is at least as large as one of those, and the same in all else."""
        candidate = space.candidate(number) if self.sizes else ""
        if isinstance(candidate, str):
            return False
        others, (batch, tokens) = _others_and_size(space, candidate)
        return any(batch >= smaller and tokens >= shorter for smaller, shorter in self.sizes.get(others, ()))


def _others_and_size(space: Space, candidate: Candidate) -> tuple[tuple[object, ...], tuple[int, int]]:
    train = candidate.job.train
    others = (value for axis, value in zip(space.axes, candidate.choice, strict=True) if axis.name not in _SIZES)
    return (*others, train.gradient_accumulation_steps > 1), (train.micro_batch_size, train.sequence_length)


_USUAL_RATIO = 1.25
"""Of the bytes of a plan to those of its bound, before any plan is made."""
_LATEST = 9
"""Plans that the ratio is the median of."""

_ALIKE = 200
"""Groups of the best rank of which the most usual is planned first: an estimate tells the best few hundred of thousands
no further apart than it is wrong by."""

_WEIGHING_SHARE = 0.5
"""Of the time, at most, for looking through candidates."""

_TRACE_SECONDS = 3.0
"""An 8B model by FSDP2, with its replay; tensor parallelism and pipelines are slower (docs/results/performance.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate with its plan."""

    candidate: Candidate
    exact: Exact
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
    left_by_roofline: int = 0
    """Candidates that were not planned since their products and collectives alone are estimated to take longer than a
    step of the last one that was found."""
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
        """Whether no candidate of those that were looked at could be better: by bounds, of cost by an estimate."""
        return not self.stopped


Watch = Callable[[SearchResult], None]
"""Called every moment with what is known by then, so that it can be shown before the search ends."""


def search(
    space: Space,
    plans: Plans,
    *,
    objective: Objective = Objective.COST,
    top: int = 10,
    until: float = float("inf"),
    most: int = MOST_LOOKED_AT,
    any_fit: bool = False,
    progress: Progress = lambda _: None,
    watch: Watch = lambda _: None,
    note: Progress = lambda _: None,
) -> SearchResult:
    """The best `top` candidates that fit; with `any_fit` the first that are found, whatever could be better. `note`
    is told before the first plan where the time will not be enough. No plan is begun after `until`, by
    time.monotonic(). Raises SpecError for a space that its rules leave empty."""
    began = time.monotonic()
    seconds = until - began
    scales = Scales(space.size)
    result = SearchResult(space, objective, scales)

    def tell(what: str) -> None:
        result.doing, result.seconds = what, time.monotonic() - began
        if result.rows and result.first_seconds is None:
            result.first_seconds = result.seconds
        progress(what)
        watch(result)

    def is_weighed_enough() -> bool:
        return plans.is_over or time.monotonic() >= began + seconds * _WEIGHING_SHARE

    try:
        weigh(space, objective, scales, tell, most, is_weighed_enough)
        if (expected := len(scales.groups) * _TRACE_SECONDS / plans.processes) > seconds:
            note(
                f"{scales.left:,} candidates may fit, and their {len(scales.groups):,} plans would take"
                f" {expected:,.0f} s at least; {seconds:.0f} s are for the most usual of them. Fix axes (tp=1 pp=1"
                " cp=1) for fewer, or give more --time"
            )
        _Run(result, plans, top, any_fit, tell, until, sorted(scales.groups.values(), key=_rank_of)).decide()
    except KeyboardInterrupt:
        result.stopped = "interrupted"
    if not scales.in_time and not result.stopped:
        result.stopped = "time"
    result.seconds = time.monotonic() - began
    return result


Rank = tuple[float, int]


def _rank_of(group: list[Weighed]) -> Rank:
    """Of candidates that share a trace, which are sorted."""
    return group[0].rank


_LAST: Rank = (float("inf"), 0)


@dataclass(slots=True)
class _Run:
    result: SearchResult
    plans: Plans
    top: int
    any_fit: bool
    tell: Progress
    until: float
    waiting: list[list[Weighed]]
    """Candidates with one trace each, by rank."""
    ratios: deque[float] = field(default_factory=lambda: deque([_USUAL_RATIO], maxlen=_LATEST))
    exceeded: Exceeded = field(default_factory=Exceeded)

    def decide(self) -> None:
        """Plan what is likely to fit, the best first, until enough is found; then what could still be better."""
        result = self.result

        def tell(planned: int) -> None:
            result.traces_left = len(self.waiting) + planned
            self._tell_progress()

        try:
            for group, answers in plan_in_turn(self.plans, self._next_group, tell=tell):
                self._take(group, answers)
            if result.objective is Objective.COST and not self.any_fit:
                result.left_by_roofline = self._better_than(_LAST)
        except OutOfTimeError:
            result.stopped = "time"
            result.undecided = self._better_than(self._rank_to_beat())

    def _next_group(self) -> tuple[list[Weighed], list[Job]] | None:
        while taken := self._most_wanted():
            if time.monotonic() >= self.until:
                raise OutOfTimeError
            self.waiting = [group for group in self.waiting if group is not taken]
            group = [weighed for weighed in taken if not self.exceeded.covers(self.result.space, weighed.number)]
            self.result.left_out += len(taken) - len(group)
            if group:
                return group, [self._candidate(weighed).job for weighed in group]
        return None

    def _most_wanted(self) -> list[Weighed]:
        """The group to plan next; none where nothing that waits could displace what was found."""
        ratio, beaten = statistics.median(self.ratios), self._rank_to_beat()
        wanted = [group for group in self.waiting if _rank_of(group) < beaten]
        likely = [group for group in wanted if any(weighed.is_likely(ratio) for weighed in group)]
        # Of the best the most usual; before anything is found of all of them: an answer that somebody asked for.
        alike = (likely or wanted)[: _ALIKE if self.result.rows else None]
        return min(alike, key=lambda group: (group[0].unusual, _rank_of(group)), default=[])

    def _rank_to_beat(self) -> Rank:
        if len(self.result.rows) < self.top:
            return _LAST
        return (float("-inf"), 0) if self.any_fit else self.result.rows[-1].rank

    def _better_than(self, rank: Rank) -> int:
        """Candidates that wait and rank before it."""
        return sum(weighed.rank < rank for group in self.waiting for weighed in group)

    def _candidate(self, weighed: Weighed) -> Candidate:
        candidate = self.result.space.candidate(weighed.number)
        assert isinstance(candidate, Candidate)
        return candidate

    def _take(self, group: list[Weighed], answers: Answers) -> None:
        result = self.result
        result.traced += 1
        result.planned += len(group)
        fitting: dict[Gpu, list[Row]] = {}
        for weighed, answer in zip(group, answers, strict=True):
            if isinstance(answer, Refused):
                result.refused[answer.reason] = result.refused.get(answer.reason, 0) + 1
                continue
            row = Row(candidate=self._candidate(weighed), exact=answer, value=result.objective.of(answer))
            if answer.whole:
                self.ratios.append(answer.device_bytes / max(weighed.bound.least_bytes, 1))
            if answer.fits:
                fitting.setdefault(row.candidate.job.cluster.gpu, []).append(row)
                continue
            if answer.surely_exceeds:
                self.exceeded.add(result.space, row.candidate)
            closest = result.closest
            if answer.whole and (closest is None or answer.headroom_bytes > closest.exact.headroom_bytes):
                result.closest = row
        # Of candidates that differ in the allocator's settings alone one is shown: that which fits without being tight.
        verdicts = list(Verdict)
        for rows in fitting.values():
            row = min(rows, key=lambda row: (verdicts.index(row.exact.verdict), *row.rank))
            result.rows = sorted([*result.rows, row], key=lambda row: row.rank)[: self.top]
            if row in result.rows:
                self._tell_progress()

    def _tell_progress(self) -> None:
        result = self.result
        best = f", best so far: {result.rows[0].candidate.describe()}" if result.rows else ""
        self.tell(
            f"planned {result.planned} of {result.scales.left:,} candidates ({result.traces_left:,} traces left),"
            f" {len(result.rows)} of {self.top} found{best}"
        )
