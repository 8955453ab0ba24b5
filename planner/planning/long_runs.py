"""Judges runs whose batches differ in size: what each size takes, and what the allocator caches over all steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.allocator.long_runs.replayed_run import PartedRun, ReplayedRun
from planner.allocator.rules import Rules
from planner.events import Phase
from planner.report.statement import NamedMoment, PhaseStatement, RankClassStatement
from planner.report.style import size
from planner.tracing.batch_sizes import LARGEST, DrawnBatches, VaryingSize
from planner.tracing.program.rank_orders import RankRun
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


@dataclass(frozen=True, slots=True)
class LongRun:
    """A run of batches of different sizes, replayed as the job would run within the room that there is."""

    capped: ReplayedRun
    unlimited: ReplayedRun
    """What it would have taken; the same, where the memory does not run out."""

    @classmethod
    def replay(cls, run: PartedRun, rules: Rules, room_bytes: int, device_bytes: int) -> LongRun:
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

    def name_moment(self, alone: RankClassStatement, steps: str) -> NamedMoment:
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


def batch_moments(loaders: Iterable[DrawnBatches], statement: RankClassStatement) -> Iterator[NamedMoment]:
    """What the chosen batches of its data take: of those of one iteration (gradients accumulate) its figures are those
    of the last, which is the largest."""
    for loader in loaders:
        largest = {(batch.iteration, batch.evaluates): batch for batch in loader.tried}
        for batch in largest.values():
            alike = [
                phase
                for phase in statement.phases
                if phase.iteration <= batch.iteration and batch.evaluates == (phase.phase is Phase.EVAL)
            ]
            if not alike or not batch.iteration:
                continue
            # An iteration that repeats the one before it is not stated again.
            last = alike[-1].iteration
            peaks = [phase for phase in alike if phase.iteration == last]
            yield moment_of_phases(
                batch.name,
                peaks,
                statement,
                f"{loader.size.name or 'The batch'} is {list(batch.shape)}: of {loader.drawn:,} batches"
                f" {batch.as_large:,} {'is' if batch.as_large == 1 else 'are'} at least as large.",
            )


def moment_of_phases(
    name: str, phases: Sequence[PhaseStatement], statement: RankClassStatement, sentence: str
) -> NamedMoment:
    """The highest of these phases."""
    peak = max(phases, key=lambda phase: phase.peak_allocated_bytes)
    reserved = max(phase.peak_reserved_bytes for phase in phases)
    return name_moment(statement, name, sentence, (peak.phase, peak.iteration), (peak.peak_allocated_bytes, reserved))


def describe_sizes(run: RankRun) -> Iterator[str]:
    """That sizes vary, and how far that is in the figures."""
    for loader in run.trace.drawn:
        epoch = f" of {loader.epoch:,} batches" if loader.epoch > loader.drawn else " batches"
        yield f"the sizes of batches vary: {_say_size(loader.size)} among {loader.drawn:,}{epoch} drawn ahead"
        if loader.drawn != loader.epoch:
            yield "larger ones may come, and are in no figure (--batches draws more)"
        if not all(batch.iteration for batch in loader.tried if batch.name == LARGEST):
            yield "the largest batch was not given to the program: it is in no figure"
    if run.varying is not None and not run.trace.drawn:
        yield f"the sizes of inputs vary: {_say_size(run.varying)}; larger ones may come, and are in no figure"


def _say_size(size: VaryingSize) -> str:
    name, place = size.name or "the batch", f" ({size.place})" if size.place else ""
    return f"{name}{place} is {list(size.smallest)} to {list(size.largest)}, in {size.different:,} shapes"
