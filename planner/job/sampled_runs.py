"""Draws the lengths of a run's batches."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from planner.job.schema import PERCENTILES, Job, Lengths, Train, tokens_of

Steps = tuple[tuple[int, ...], ...]
"""Of each optimizer step the length of each of its micro-batches, in tokens."""

_MOST_TRACED = 7
"""Lengths of which a step is traced: two decide a line, three a parabola, and the others tell whether it holds."""
_MOST_MICRO_BATCHES = 3
"""Of an accumulation the first, one in its middle and the last are told apart."""
_FIRST_STEPS = 2
"""Run as they are drawn: optimizer state is born in the first, DDP's buckets are made anew in the second."""
_FIRST_STEPS_REPLICATED = 4
"""With a static graph the reducer takes its map of used parameters in the third step (torch 2.13,
torch/csrc/distributed/c10d/reducer.cpp)."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of the sequences of a job: `lengths` ascend, and `shares[i]` of all sequences are no longer than `lengths[i]`.

    Where it is `even`, lengths between two of them are spread evenly; else there are none. `longest` cuts sequences,
    and batches are padded to a multiple of `multiple`.
    """

    lengths: tuple[int, ...]
    shares: tuple[float, ...]
    even: bool
    longest: int
    multiple: int

    def length_at(self, share: float) -> int:
        """The padded length of the sequence than which `share` of all are shorter, in tokens."""
        index = min(bisect_left(self.shares, share), len(self.lengths) - 1)
        length = self.lengths[index]
        if self.even and index:
            before, after = self.shares[index - 1], self.shares[index]
            start = self.lengths[index - 1]
            length = start + round((length - start) * (share - before) / (after - before))
        return self.padded(length)

    def padded(self, length: int) -> int:
        """Cut to the longest, and padded."""
        return -(-min(length, self.longest) // self.multiple) * self.multiple

    def share_of_longest(self) -> float:
        """The share of sequences that are, padded, as long as the longest one."""
        below = self.padded(self.longest) - self.multiple
        if not self.even:
            return 1.0 - max((share for length, share in self._points() if length <= below), default=0.0)
        if below < self.lengths[0]:
            return 1.0
        for (start, before), (end, after) in pairwise(self._points()):
            if start <= below < end:
                return 1.0 - (before + (after - before) * (below - start) / (end - start))
        return 0.0

    def _points(self) -> Sequence[tuple[int, float]]:
        return list(zip(self.lengths, self.shares, strict=True))


def distribution_of(lengths: Lengths, longest: int) -> Distribution:
    """The distribution that a spec gives; `longest` is `train.sequence_length`."""
    multiple = lengths.pad_to_multiple_of
    if lengths.histogram:
        bins = sorted((tokens_of(length), share) for length, share in lengths.histogram.items())
        shares = [*itertools.accumulate(share for _, share in bins)]
        return Distribution(tuple(length for length, _ in bins), (*shares[:-1], 1.0), False, longest, multiple)
    known = [(getattr(lengths, name), share) for name, share in PERCENTILES.items() if getattr(lengths, name)]
    points = [(lengths.min, 0.0), *known, (max(longest, *(length for length, _ in known)), 1.0)]
    ends = tuple(length for length, _ in points)
    return Distribution(ends, tuple(share for _, share in points), True, longest, multiple)


def draw_steps(train: Train) -> Steps:
    """The run of a job with `train.lengths`: every step's micro-batches, each as long as its longest sequence."""
    lengths, micro_batches = train.lengths, train.gradient_accumulation_steps
    assert lengths is not None
    if lengths.batches:
        cut = tuple(min(length, train.sequence_length) for length in lengths.batches)
        firsts = range(0, len(cut) - micro_batches + 1, micro_batches)
        return tuple(cut[first : first + micro_batches] for first in firsts)
    distribution = distribution_of(lengths, train.sequence_length)
    return _draw(distribution, train.micro_batch_size, lengths.steps, micro_batches, lengths.seed)


@cache
def _draw(distribution: Distribution, sequences: int, steps: int, micro_batches: int, seed: int) -> Steps:
    chance = random.Random(seed)
    # The longest of so many: one draw of the highest share stands for one of each sequence.
    return tuple(
        tuple(distribution.length_at(chance.random() ** (1 / sequences)) for _ in range(micro_batches))
        for _ in range(steps)
    )


def traced_lengths(train: Train) -> tuple[int, ...]:
    """The lengths of which a step is traced, ascending: all, or some of those that are drawn, shortest and longest
    among them."""
    every = sorted({length for step in draw_steps(train) for length in step} | {train.sequence_length})
    if len(every) <= _MOST_TRACED:
        return tuple(every)
    last = _MOST_TRACED - 1
    return tuple(every[round(number * (len(every) - 1) / last)] for number in range(_MOST_TRACED))


def first_steps(job: Job) -> int:
    """So many steps do something that later ones do not."""
    replicated = job.parallel.dp_replicate.degree > 1 and job.parallel.dp_shard.degree == 1
    return _FIRST_STEPS_REPLICATED if replicated else _FIRST_STEPS


def traced_steps(job: Job) -> Steps:
    """What is run to know every step of a job with `train.lengths`: its first steps, one of each traced length, and a
    last one that frees what the one before it left."""
    alike = min(job.train.gradient_accumulation_steps, _MOST_MICRO_BATCHES)
    # Of each the first micro-batch, the longest of those in the middle, the last.
    drawn = tuple(
        step if len(step) <= _MOST_MICRO_BATCHES else (step[0], max(step[1:-1]), step[-1])
        for step in draw_steps(job.train)[: first_steps(job)]
    )
    lengths = traced_lengths(job.train)
    return (*drawn, *((length,) * alike for length in (*lengths, lengths[-1])))


def as_traced(job: Job) -> Job:
    """The job whose iterations are those steps, one after the other; what is done every so many steps is left out, but
    for one evaluation at the end."""
    lengths = job.train.lengths
    assert lengths is not None
    steps = traced_steps(job)
    flat = tuple(length for step in steps for length in step)
    evaluation = job.train.eval
    train = replace(
        job.train,
        lengths=Lengths(batches=flat, pad_to_multiple_of=lengths.pad_to_multiple_of),
        gradient_accumulation_steps=len(steps[0]),
        iterations=len(steps),
        eval=None if evaluation is None else replace(evaluation, every=len(steps)),
    )
    return replace(job, train=train)


def steps_for_the_longest(train: Train, ranks: int = 1) -> float:
    """After how many steps one of so many ranks, each with batches of its own, may expect a batch of the longest
    sequences; of given `batches` how many steps there are to each that has one."""
    lengths = train.lengths
    assert lengths is not None
    if lengths.batches:
        steps = draw_steps(train)
        return len(steps) / max(1, sum(train.sequence_length in step for step in steps))
    share = distribution_of(lengths, train.sequence_length).share_of_longest()
    sequences = train.micro_batch_size * train.gradient_accumulation_steps * ranks
    chance = 1.0 - (1.0 - share) ** sequences
    return float("inf") if chance <= 0 else 1 / chance
