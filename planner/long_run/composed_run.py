"""The run of a job whose batches differ, made of its trace: every step's events, and its worst step by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.allocator.rules import Rules
from planner.errors import TraceError
from planner.events import Event, Mark, rename_all
from planner.job.length_draws import Steps, draw_steps, first_steps, longest_batch, traced_lengths, traced_steps
from planner.job.schema import Job
from planner.long_run.patterns import kinds_left, pattern_of
from planner.long_run.replayed_run import MOST_EVENTS, ReplayedRun, Run
from planner.long_run.sizes import ByLength
from planner.long_run.stretches import Place, Stretch, TracedRun, cut_run, places_of

_PARTS = 4
"""A step of each length is replayed so often, if not more: from so many states."""


@dataclass(frozen=True, slots=True)
class ComposedRun:
    """A run's steps, and the stretches that they are made of. `rounding` says how lengths and sizes were rounded up,
    empty where every length is replayed as it is."""

    steps: Steps
    longest_at: int
    """The first step with the longest batch, counted from 1; the last one where none was drawn."""
    drawn: int
    """Steps that were drawn or given, without one that was added for the longest batch."""
    rounding: str
    _job: Job
    _traced: TracedRun
    _by_length: Mapping[Place, ByLength]

    def replay(
        self, rules: Rules, capacity_bytes: int | None = None, *, device_bytes: int | None = None
    ) -> ReplayedRun:
        """The whole run through the allocator; the arguments are those of `planner.allocator.replay`."""
        every = self._job.train.empty_cache_every
        run = Run(
            self._traced, self._by_length, rules, capacity_bytes, device_bytes=device_bytes, empty_cache_every=every
        )
        return run.take(self.steps, first_steps(self._job))

    def worst_step_alone(self, number: int) -> tuple[Event, ...]:
        """The loading, the first steps, and then a step of the longest batches, under this number."""
        events, standing = list(self._traced.before), list(self._traced.standing)
        longest = longest_batch(self._job.train)
        told_apart = len(traced_steps(self._job)[0])
        ends = [self._traced.stretches[place][longest] for place in places_of(told_apart)]
        for stretch in (*ends, self._traced.after):
            renamed, standing = _placed(stretch, standing)
            events += (replace(each, iteration=number) if isinstance(each, Mark) else each for each in renamed)
        return tuple(events)


def _placed(stretch: Stretch, standing: Sequence[int]) -> tuple[list[Event], list[int]]:
    """The stretch's events with what stands in the place of what it found, and what stands after it."""
    names = dict(zip(stretch.found, standing, strict=True))
    return list(rename_all(stretch.events, names)), [names.get(each, each) for each in stretch.left]


def compose(job: Job, events: Sequence[Event]) -> ComposedRun:
    """The run of a job with `train.lengths`, of whose traced steps these are the events.

    Raises TraceError for steps that leave other things behind at other lengths: they cannot be put together.
    """
    train = job.train
    traced = cut_run(events, traced_steps(job), first_steps(job))
    for place, stretches in traced.stretches.items():
        _refuse_unlike(place, stretches)
    by_length = {
        place: ByLength({length: pattern_of(each) for length, each in stretches.items()})
        for place, stretches in traced.stretches.items()
    }
    drawn, longest = draw_steps(train), longest_batch(train)
    steps = drawn if any(longest in step for step in drawn) else (*drawn, (longest,) * len(drawn[0]))
    steps, rounding = _rounded(steps, job, by_length)
    at = next(number for number, step in enumerate(steps, 1) if longest in step)
    return ComposedRun(steps, at, len(drawn), rounding, job, traced, by_length)


def _refuse_unlike(place: Place, stretches: Mapping[int, Stretch]) -> None:
    lengths = sorted(stretches)
    last = stretches[lengths[-1]]
    for length in lengths:
        one = stretches[length]
        if len(one.found) != len(last.found) or kinds_left(one) != kinds_left(last):
            raise TraceError(
                f"a step of {length} tokens leaves other blocks than one of {lengths[-1]} ({place.value} part)",
                allowed="steps that leave the same at every length, of other sizes",
                remedy="give train.sequence_length as one length",
                place="train.lengths",
            )


def _rounded(steps: Steps, job: Job, by_length: Mapping[Place, ByLength]) -> tuple[Steps, str]:
    """The steps with lengths that are replayed, and what was done to them."""
    traced = traced_lengths(job.train)
    every = {length for step in steps for length in step}
    if every <= set(traced):
        return steps, ""
    ruled_from = max(each.ruled_from for each in by_length.values())
    events = sum(len(each.at(traced[-1]).pattern.steps) for each in by_length.values())
    multiple, by = 0, dict[int, int]()
    while not multiple or len(set(by.values())) * events > MOST_EVENTS // _PARTS:
        multiple = 2 * multiple or 1
        by = {each: _up(each, multiple, traced, ruled_from) for each in every}
    said = []
    if multiple > 1:
        said.append(f"lengths are rounded up to multiples of {multiple}, to replay fewer of them")
    if min(every) < ruled_from:
        said.append(
            f"lengths below {ruled_from} tokens are rounded up to those that were traced, since they take other blocks,"
            " not only smaller ones"
        )
    loose = sum((each.inexact for each in by_length.values()), Counter[str]())
    if loose:
        count = sum(len(each.at(traced[-1]).sizes) for each in by_length.values())
        said.append(
            f"of {count} sizes of blocks {loose['straight']} are interpolated, within 0.1 % at the traced lengths, and"
            f" {loose['next']} are those of the next longer traced length"
        )
    return tuple(tuple(by[length] for length in step) for step in steps), "; ".join(said)


def _up(length: int, multiple: int, traced: Sequence[int], ruled_from: int) -> int:
    if length < ruled_from:
        return min(each for each in traced if each >= length)
    return min(-(-length // multiple) * multiple, traced[-1])
