"""Leaves out candidates that are larger than one whose tensors alone are too many for its GPU.

The rule: with everything else equal, more samples in a micro-batch and longer sequences never need fewer bytes in
tensors. What the allocator makes of them may be less, so that only a plan says whether a candidate with fewer tensors
than there is room fits; and it is no rule between one micro-batch and several, which keep gradients beside them, nor in
a pipeline, where the number of micro-batches decides how many are under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.searching.space import Candidate, Space

_SIZES = ("micro_batch_size", "sequence_length")


@dataclass(slots=True)
class Exceeded:
    """Sizes that are too large, by everything else."""

    sizes: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, space: Space, candidate: Candidate) -> None:
        """Remember one whose tensors exceed its GPU."""
        if candidate.job.parallel.pp.degree == 1:
            self.sizes.setdefault(_others(space, candidate), []).append(_size(candidate))

    def covers(self, space: Space, number: int) -> bool:
        """Whether the candidate is at least as large as one of those, and the same in all else."""
        if not self.sizes:
            return False
        candidate = space.candidate(number)
        if isinstance(candidate, str):
            return False
        batch, tokens = _size(candidate)
        known = self.sizes.get(_others(space, candidate), ())
        return any(batch >= smaller and tokens >= shorter for smaller, shorter in known)


def _size(candidate: Candidate) -> tuple[int, int]:
    return candidate.job.train.micro_batch_size, candidate.job.train.sequence_length


def _others(space: Space, candidate: Candidate) -> tuple[object, ...]:
    several = candidate.job.train.gradient_accumulation_steps > 1
    return (
        *(each for axis, each in zip(space.axes, candidate.choice, strict=True) if axis.name not in _SIZES),
        several,
    )
