"""The search: candidates in the order of what they could be at best, each decided by a plan."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from planner.job.schema import Gpu, Job
from planner.report.statement import Verdict
from planner.searching.exact_plans import Answers, Exact, OutOfTimeError, Plans, Refused, plan_in_turn
from planner.searching.space import Candidate, Space
from planner.searching.weighing import MOST_LOOKED_AT, Objective, Progress, Scales, Weighed, weigh

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

Rank = tuple[float, int]
_Entry = tuple[Rank, list[Weighed]]


class Waiting:
    """Groups of candidates with one trace each, those that are likely to fit before the others."""

    def __init__(self, groups: Sequence[list[Weighed]]) -> None:
        """A group is sorted by rank."""
        self._ratios: deque[float] = deque([_USUAL_RATIO], maxlen=_LATEST)
        self._is_anything_found = False
        self._sort([(group[0].rank, group) for group in groups])

    @property
    def count(self) -> int:
        return len(self._likely) + len(self._doubtful)

    @property
    def candidates(self) -> int:
        """Of all groups."""
        return sum(len(group) for _, group in (*self._likely, *self._doubtful))

    def take(self, last: Rank, enough: bool) -> list[Weighed]:
        """The group to plan next; none where nothing that waits ranks before `last`. `enough`: as many were found as
        are wanted, so that only what could displace them counts."""
        for heap in (self._likely, self._doubtful):
            if not heap or (enough and heap[0][0] >= last):
                continue
            # Of the best the most usual; before anything is found of all of them: an answer that somebody asked for.
            alike = heapq.nsmallest(_ALIKE, heap) if self._is_anything_found else heap
            entry = min(
                (entry for entry in alike if not enough or entry[0] < last),
                key=lambda entry: (entry[1][0].unusual, entry[0]),
            )
            heap.remove(entry)
            heapq.heapify(heap)
            return entry[1]
        return []

    def note_fit(self) -> None:
        """Something fits: from now on rank comes first."""
        self._is_anything_found = True

    def learn(self, least_bytes: int, planned_bytes: int) -> None:
        """What a plan said, beside its bound."""
        self._ratios.append(planned_bytes / max(least_bytes, 1))
        self._sort([*self._likely, *self._doubtful])

    def better_than(self, last: Rank) -> int:
        """Candidates that rank before `last`."""
        entries = [*self._likely, *self._doubtful]
        return sum(weighed.rank < last for _, group in entries for weighed in group)

    def _sort(self, entries: Sequence[_Entry]) -> None:
        ratio = statistics.median(self._ratios)
        self._likely: list[_Entry] = []
        self._doubtful: list[_Entry] = []
        for entry in entries:
            fits = any(weighed.least_bytes * ratio <= weighed.capacity_bytes for weighed in entry[1])
            (self._likely if fits else self._doubtful).append(entry)
        heapq.heapify(self._likely)
        heapq.heapify(self._doubtful)


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
    time_left: float = float("inf"),
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
    scales = Scales(space.size)
    result = SearchResult(space, objective, scales)

    def tell(what: str) -> None:
        result.doing, result.seconds = what, time.monotonic() - began
        progress(what)
        watch(result)

    def is_weighed_enough() -> bool:
        now = time.monotonic()
        return plans.is_over or now >= until or now - began >= time_left * _WEIGHING_SHARE

    run = _Run(space, plans, objective, top, any_fit, tell, result, began, until)
    try:
        weigh(space, objective, scales, tell, most, is_weighed_enough)
        if (expected := len(scales.groups) * _TRACE_SECONDS / plans.processes) > time_left:
            note(
                f"{scales.left:,} candidates may fit, and their {len(scales.groups):,} plans would take"
                f" {expected:,.0f} s at least; {time_left:.0f} s are for the most usual of them. Fix axes (tp=1 pp=1"
                " cp=1) for fewer, or give more --time"
            )
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
    until: float
    exceeded: Exceeded = field(default_factory=Exceeded)

    def decide(self, groups: Sequence[list[Weighed]]) -> None:
        """Plan what is likely to fit, the best first, until enough is found; then what could still be better."""
        waiting = Waiting(groups)
        result = self.result

        def next_group() -> tuple[list[Weighed], list[Job]] | None:
            while taken := waiting.take(self._last_rank(), len(result.rows) >= self.top):
                if time.monotonic() >= self.until:
                    raise OutOfTimeError
                group = [weighed for weighed in taken if not self.exceeded.covers(self.space, weighed.number)]
                result.left_out += len(taken) - len(group)
                if group:
                    return group, [self._candidate(weighed).job for weighed in group]
            return None

        def tell(planned: int) -> None:
            result.traces_left = waiting.count + planned
            self._tell_progress()

        try:
            for group, answers in plan_in_turn(self.plans, next_group, tell=tell):
                self._take(group, answers, waiting)
            if self.objective is Objective.COST and not self.any_fit:
                result.left_by_roofline = waiting.candidates
        except OutOfTimeError:
            result.stopped = "time"
            result.undecided = waiting.better_than(self._last_rank())

    def _last_rank(self) -> Rank:
        """What a candidate has to be better than."""
        if len(self.result.rows) < self.top:
            return float("inf"), 0
        return (float("-inf"), 0) if self.any_fit else self.result.rows[-1].rank

    def _candidate(self, weighed: Weighed) -> Candidate:
        candidate = self.space.candidate(weighed.number)
        assert isinstance(candidate, Candidate)
        return candidate

    def _take(self, group: list[Weighed], answers: Answers, waiting: Waiting) -> None:
        result = self.result
        result.traced += 1
        result.planned += len(group)
        fitting: dict[Gpu, Row] = {}
        for weighed, answer in zip(group, answers, strict=True):
            if isinstance(answer, Refused):
                result.refused[answer.reason] = result.refused.get(answer.reason, 0) + 1
                continue
            row = Row(candidate=self._candidate(weighed), exact=answer, value=self.objective.of(answer))
            if answer.whole:
                waiting.learn(weighed.least_bytes, answer.device_bytes)
            if answer.fits:
                # Of candidates that differ in the allocator's settings alone one is shown: that which fits without
                # being tight.
                gpu = row.candidate.job.cluster.gpu
                verdicts = list(Verdict)
                fitting[gpu] = min(
                    (row, fitting.get(gpu, row)), key=lambda row: (verdicts.index(row.exact.verdict), *row.rank)
                )
                continue
            if answer.surely_exceeds:
                self.exceeded.add(self.space, row.candidate)
            closest = result.closest
            if answer.whole and (closest is None or answer.headroom_bytes > closest.exact.headroom_bytes):
                result.closest = row
        for row in fitting.values():
            waiting.note_fit()
            result.rows.append(row)
            result.rows.sort(key=lambda row: row.rank)
            del result.rows[self.top :]
            if row in result.rows:
                if result.first_seconds is None:
                    result.first_seconds = time.monotonic() - self.began
                self._tell_progress()

    def _tell_progress(self) -> None:
        result = self.result
        best = f", best so far: {describe(result.rows[0].candidate)}" if result.rows else ""
        self.tell(
            f"planned {result.planned} of {result.scales.left:,} candidates ({result.traces_left:,} traces left),"
            f" {len(result.rows)} of {self.top} found{best}"
        )


def describe(candidate: Candidate) -> str:
    """What is different from the job, in a few words."""

    def short(key: str) -> str:
        *_, section, last = key.split(".")
        return section if last == "degree" else last

    return ", ".join(f"{short(key)} {value}" for key, value in candidate.change.items()) or "the job itself"
