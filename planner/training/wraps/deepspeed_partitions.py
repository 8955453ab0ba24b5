"""Computes which rank owns which elements of DeepSpeed's flat parameters (0.19.8, zero/stage_1_and_2.py).

The parameters of a group are one flat buffer, padded to twice the number of ranks and cut into equal partitions,
wherever in a parameter that may be: ranks differ in which parameters they own a piece of.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

_START_ALIGNMENT = 2
"""Elements, so that a partition of 16-bit numbers starts at 4 bytes."""
_MOST_KINDS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one parameter in one partition."""

    parameter: int
    rank: int
    start: int
    """Within the parameter."""
    elements: int


@dataclass(frozen=True)
class Partitions:
    """`sizes` are the elements of the parameters, in the order of the optimizer."""

    sizes: tuple[int, ...]
    ranks: int

    @property
    def total(self) -> int:
        """Elements of the flat buffer, padding included."""
        alignment = _START_ALIGNMENT * self.ranks
        return -(-sum(self.sizes) // alignment) * alignment

    @property
    def padding(self) -> int:
        return self.total - sum(self.sizes)

    @property
    def size(self) -> int:
        """Elements of each partition."""
        return self.total // self.ranks

    @property
    def offsets(self) -> list[int]:
        """Where each parameter begins."""
        return [0, *itertools.accumulate(self.sizes)][: len(self.sizes)]

    @cached_property
    def pieces(self) -> list[list[Piece]]:
        """For each parameter its pieces, in the order of ranks."""
        return [
            list(self._split_range(number, offset, size))
            for number, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True))
        ]

    def of_rank(self, rank: int) -> list[Piece]:
        """What is in one partition."""
        return [piece for pieces in self.pieces for piece in pieces if piece.rank == rank]

    def kinds(self) -> tuple[int, ...]:
        """For each rank a number, equal where two hold gradients of the same sizes.

        Where there are more than eight kinds, three are left, so that a plan does not grow with the world: the ranks
        that hold most, those that hold least, and all others, whose sizes lie in between.
        """
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        for pieces in self.pieces:
            for piece in pieces:
                found[piece.rank].append((self.sizes[piece.parameter], piece.elements))
        shapes = [(sum(whole for whole, _ in each), tuple(sorted(each))) for each in found]
        ordered = sorted(set(shapes))
        if len(ordered) > _MOST_KINDS:
            return tuple(0 if each == ordered[-1] else 1 if each == ordered[0] else 2 for each in shapes)
        return tuple(ordered.index(each) for each in shapes)

    def _split_range(self, number: int, offset: int, size: int) -> list[Piece]:
        found, start = [], 0
        while start < size:
            rank = (offset + start) // self.size
            elements = min(size - start, (rank + 1) * self.size - offset - start)
            found.append(Piece(number, rank, start, elements))
            start += elements
        return found
