"""Judges the run of a job whose batches differ: its worst step decides, after everything that came before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.allocator.rules import Rules
from planner.job.axes import axis_degrees
from planner.job.length_draws import longest_batch, steps_for_the_longest
from planner.job.schema import Job
from planner.long_run.composed_run import ComposedRun, compose
from planner.long_run.replayed_run import ReplayedRun
from planner.report.named_moments import NamedMoment
from planner.report.statement import RankClassStatement, Verdict
from planner.report.style import size
from planner.tracing.traced import Trace

_DATA_AXES = ("dp_replicate", "dp_shard", "ep")
"""Axes along which each rank has batches of its own."""
_MOST_SAID = 8
"""Steps with a new maximum that a sentence names."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run replayed as the job would run, within the room that there is, and the trace of its worst step alone."""

    job: Job
    composed: ComposedRun
    capped: ReplayedRun
    unlimited: ReplayedRun
    """What it would have taken; the same, where the memory does not run out."""
    worst_step: Trace

    def judge(self, alone: RankClassStatement, interval: Callable[[int], tuple[int, int]]) -> RankClassStatement:
        """The statement on the worst step alone, as it is after all the steps before it."""
        peak, run = alone.peak, self.unlimited
        reserved = max(peak.reserved_bytes, run.peak_reserved_bytes)
        device = reserved + alone.outside_allocator.total_bytes
        between = interval(device)
        return replace(
            alone,
            peak=replace(peak, reserved_bytes=reserved, device_bytes=device, interval_bytes=between),
            verdict=self._verdict(alone, between[1]),
            cache_releases=max(alone.cache_releases, self.capped.cache_releases),
            moments=(self._longest_batch(alone), self._many_lengths(alone)),
        )

    def _verdict(self, alone: RankClassStatement, highest: int) -> Verdict:
        if alone.verdict is Verdict.EXCEEDS or self.capped.out_of_memory_step:
            return Verdict.EXCEEDS
        if self.capped.cache_releases or highest > alone.capacity_bytes:
            return Verdict.TIGHT
        return alone.verdict

    def _longest_batch(self, alone: RankClassStatement) -> NamedMoment:
        run, train = self.unlimited, self.job.train
        step, longest = run.worst_step, longest_batch(train)
        index = run.allocated_bytes.index(max(run.allocated_bytes))
        until = [each.reserved_bytes for each in run.growths if each.step <= step]
        reserved = max(until, default=alone.peak.reserved_bytes)
        once = _once_in(steps_for_the_longest(train))
        ranks = _ranks_with_own_batches(self.job)
        any_rank = f", on one of {ranks} ranks {_once_in(steps_for_the_longest(train, ranks))}" if ranks > 1 else ""
        added = "" if step <= self.composed.drawn else f"; none of the {self.composed.drawn} steps drawn has one"
        return NamedMoment(
            name="longest batch",
            phase=run.phases[index],
            iteration=step,
            allocated_bytes=run.allocated_bytes[index],
            reserved_bytes=reserved,
            device_bytes=reserved + alone.outside_allocator.total_bytes,
            sentence=f"The longest batch of {longest} tokens, expected {once}{any_rank}{added}.",
        )

    def _many_lengths(self, alone: RankClassStatement) -> NamedMoment:
        run, composed = self.unlimited, self.composed
        last = run.growths[-1]
        index = min(last.step, len(run.allocated_bytes)) - 1
        more = run.peak_reserved_bytes - alone.peak.reserved_bytes
        by = f"{size(more)} more than the longest batch alone" if more > 0 else "no more than the longest batch alone"
        lengths = len({length for step in composed.steps for length in step})
        told = f"After {len(composed.steps)} steps of {lengths} lengths {size(last.reserved_bytes)} are reserved, {by};"
        parts = [f"{told} new maxima came in {_steps_said([each.step for each in run.growths])}"]
        if composed.rounding:
            parts.append(composed.rounding)
        if run.left_out:
            parts.append(f"{run.left_out} of the steps were not replayed, which would take too long")
        if self.capped.out_of_memory_step:
            phase = self.capped.out_of_memory_phase.value.replace("_", " ")
            parts.append(f"the memory runs out in step {self.capped.out_of_memory_step}, {phase}")
        return NamedMoment(
            name="after many lengths",
            phase=last.phase,
            iteration=last.step,
            allocated_bytes=run.allocated_bytes[index],
            reserved_bytes=last.reserved_bytes,
            device_bytes=last.reserved_bytes + alone.outside_allocator.total_bytes,
            sentence="; ".join(parts) + ".",
        )


def replay_run(job: Job, trace: Trace, room_bytes: int) -> JudgedRun:
    """The run of a job with `train.lengths`, of whose steps this is the trace, in so much room."""
    rules = Rules.from_conf(job.allocator.conf)
    composed = compose(job, trace.written_out())
    capped = composed.replay(rules, room_bytes, device_bytes=job.cluster.gpu.total_bytes)
    unlimited = composed.replay(rules) if capped.out_of_memory_step else capped
    worst = replace(trace, events=composed.worst_step_alone(unlimited.worst_step), repeats=())
    return JudgedRun(job, composed, capped, unlimited, worst)


def _ranks_with_own_batches(job: Job) -> int:
    degrees = axis_degrees(job.parallel)
    return math.prod(degrees[axis] for axis in _DATA_AXES)


def _once_in(steps: float) -> str:
    if steps == float("inf"):
        return "never"
    return "in every step" if round(steps) <= 1 else f"once in {round(steps)} steps"


def _steps_said(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[-_MOST_SAID:]))
    left = len(steps) - _MOST_SAID
    return f"steps {shown}" + (f" (and in {left} before)" if left > 0 else "")
