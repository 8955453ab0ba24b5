"""Judges runs of many lengths: what the allocator's cache comes to over all of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from planner.allocator.long_runs.replayed_run import ReplayedRun
from planner.allocator.rules import Rules
from planner.events import Phase
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
