"""Judges runs of many lengths: what the allocator's cache comes to over all of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.allocator.long_runs.replayed_run import ComposedRun, ReplayedRun, compose
from planner.allocator.rules import Rules
from planner.events import Event, Phase
from planner.job.layout import axis_degrees
from planner.job.sampled_runs import steps_for_the_longest
from planner.job.schema import Job
from planner.report.statement import NamedMoment, RankClassStatement
from planner.report.style import size
from planner.verdict import decide, worst

_MOST_STEPS = 8
"""Steps with a new maximum that a sentence names."""


def name_moment(
    statement: RankClassStatement, name: str, sentence: str, when: tuple[Phase, int], sizes: tuple[int, int]
) -> NamedMoment:
    """A moment of these ranks: `when` is its phase and iteration, `sizes` are its allocated and reserved bytes."""
    return NamedMoment(
        name=name,
        phase=when[0],
        iteration=when[1],
        allocated_bytes=sizes[0],
        reserved_bytes=sizes[1],
        device_bytes=sizes[1] + statement.outside_allocator.total_bytes,
        sentence=sentence,
    )


class Replayable(Protocol):
    """A run that is replayed as `PartedRun` is."""

    def replay(
        self, rules: Rules, capacity_bytes: int | None = None, *, device_bytes: int | None = None
    ) -> ReplayedRun: ...


@dataclass(frozen=True, slots=True)
class LongRun:
    """A run of batches of different sizes, replayed as the job would run within the room that there is."""

    capped: ReplayedRun
    unlimited: ReplayedRun
    """What it would have taken; the same, where the memory does not run out."""

    @classmethod
    def replay(cls, run: Replayable, rules: Rules, room_bytes: int, device_bytes: int) -> LongRun:
        capped = run.replay(rules, room_bytes, device_bytes=device_bytes)
        return cls(capped, run.replay(rules) if capped.out_of_memory_step else capped)

    def judge(
        self, alone: RankClassStatement, interval: Callable[[int], tuple[int, int]], unseen: int = 0, off: float = 0.0
    ) -> RankClassStatement:
        """The statement on the fullest step alone, as it is among all others; `unseen` steps come after them, and
        the bytes of steps may be `off` by as much, relative."""
        peak, capped = alone.peak, self.capped
        reserved = max(peak.reserved_bytes, self.unlimited.peak_reserved_bytes)
        device = reserved + alone.outside_allocator.total_bytes
        low, high = interval(device)
        high += self.estimate_growth(unseen) + math.ceil(off * reserved)
        together = decide(
            runs_out=bool(capped.out_of_memory_step),
            highest_bytes=high,
            capacity_bytes=alone.capacity_bytes,
            cache_releases=capped.cache_releases,
        )
        return replace(
            alone,
            peak=replace(peak, reserved_bytes=reserved, device_bytes=device, interval_bytes=(low, high)),
            verdict=worst([alone.verdict, together]),
            cache_releases=max(alone.cache_releases, capped.cache_releases),
        )

    def estimate_growth(self, unseen: int) -> int:
        """By how much more is reserved after so many more steps, and those that were left out: with each doubling of
        the steps as much as with the last that was replayed."""
        run = self.unlimited
        replayed = len(run.allocated_bytes)
        doublings = math.log2((replayed + run.left_out + unseen) / replayed)
        before = max((growth.reserved_bytes for growth in run.growths if growth.step <= replayed // 2), default=0)
        return math.ceil((run.peak_reserved_bytes - before) * doublings)

    def name_moment(self, alone: RankClassStatement, steps: str, besides: Sequence[str] = ()) -> NamedMoment:
        """What it comes to after all `steps`."""
        run, last = self.unlimited, self.unlimited.growths[-1]
        more = run.peak_reserved_bytes - alone.peak.reserved_bytes
        by = f"{size(more)} more than the longest batch alone" if more > 0 else "no more than the longest batch alone"
        grew = [growth.step for growth in run.growths]
        shown = f"steps {', '.join(map(str, grew[-_MOST_STEPS:]))}"
        shown += f" (and in {len(grew) - _MOST_STEPS} before)" if len(grew) > _MOST_STEPS else ""
        parts = [
            f"After {steps} {size(last.reserved_bytes)} are reserved, {by}",
            f"new maxima came in {shown}",
            *besides,
        ]
        if run.left_out:
            parts.append(f"{run.left_out} of the steps were not replayed, which would take too long")
        if self.capped.out_of_memory_step:
            phase = self.capped.out_of_memory_phase.value.replace("_", " ")
            parts.append(f"the memory runs out in step {self.capped.out_of_memory_step}, {phase}")
        allocated = run.allocated_bytes[min(last.step, len(run.allocated_bytes)) - 1]
        sentence = "; ".join(parts) + "."
        return name_moment(
            alone, "after many lengths", sentence, (last.phase, last.step), (allocated, last.reserved_bytes)
        )


@dataclass(frozen=True, slots=True)
class LengthsRun:
    """The run of a job with `train.lengths`."""

    job: Job
    composed: ComposedRun
    long: LongRun

    @classmethod
    def replay(cls, job: Job, events: Sequence[Event], rules: Rules, room_bytes: int) -> LengthsRun:
        """Of whose steps these are the events."""
        composed = compose(job, events)
        return cls(job, composed, LongRun.replay(composed, rules, room_bytes, job.cluster.gpu.total_bytes))

    def judge(self, alone: RankClassStatement, interval: Callable[[int], tuple[int, int]]) -> RankClassStatement:
        """The statement on the worst step alone, as it is after all the steps before it."""
        composed = self.composed
        lengths = len({length for step in composed.steps for length in step})
        many = self.long.name_moment(
            alone,
            f"{len(composed.steps)} steps of {lengths} lengths",
            [composed.rounding] if composed.rounding else [],
        )
        return replace(self.long.judge(alone, interval), moments=(self._longest_batch(alone), many))

    def _longest_batch(self, alone: RankClassStatement) -> NamedMoment:
        run, train = self.long.unlimited, self.job.train
        index = run.allocated_bytes.index(max(run.allocated_bytes))
        reserved = max(
            (growth.reserved_bytes for growth in run.growths if growth.step <= run.worst_step),
            default=alone.peak.reserved_bytes,
        )
        degrees = axis_degrees(self.job.parallel)
        ranks = math.prod(degrees[axis] for axis in ("dp_replicate", "dp_shard", "ep"))  # with batches of their own
        sentence = (
            f"The longest batch of {train.sequence_length} tokens, expected {_once_in(steps_for_the_longest(train))}"
        )
        if ranks > 1:
            sentence += f", on one of {ranks} ranks {_once_in(steps_for_the_longest(train, ranks))}"
        if run.worst_step > self.composed.drawn:
            sentence += f"; none of the {self.composed.drawn} steps drawn has one"
        when, sizes = (run.phases[index], run.worst_step), (run.allocated_bytes[index], reserved)
        return name_moment(alone, "longest batch", f"{sentence}.", when, sizes)


def _once_in(steps: float) -> str:
    if steps == float("inf"):
        return "never"
    return "in every step" if round(steps) <= 1 else f"once in {round(steps)} steps"
