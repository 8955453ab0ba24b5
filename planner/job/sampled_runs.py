"""Draws the lengths of a run's batches."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left
from dataclasses import dataclass
from functools import cache

from planner.job.schema import PERCENTILES, Lengths, Train, tokens_of


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


def draw_batches(train: Train) -> tuple[int, ...]:
    """The length of every micro-batch of a run with `train.lengths`, each as long as its longest sequence; a step of
    the longest sequences is the last, where none was drawn."""
    lengths, micro_batches = train.lengths, train.gradient_accumulation_steps
    assert lengths is not None
    if lengths.batches:
        cut = tuple(min(length, train.sequence_length) for length in lengths.batches)
        return cut[: len(cut) // micro_batches * micro_batches]
    distribution = distribution_of(lengths, train.sequence_length)
    drawn = _draw(distribution, train.micro_batch_size, lengths.steps * micro_batches, lengths.seed)
    return drawn if train.sequence_length in drawn else (*drawn, *[train.sequence_length] * micro_batches)


@cache
def _draw(distribution: Distribution, sequences: int, batches: int, seed: int) -> tuple[int, ...]:
    chance = random.Random(seed)
    # The longest of so many: one draw of the highest share stands for one of each sequence.
    return tuple(distribution.length_at(chance.random() ** (1 / sequences)) for _ in range(batches))
