"""The device mesh of a job: axes, coordinates and ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.job.axes import axis_degrees
from planner.job.schema import Parallel

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""From the outermost, whose neighbours are far apart, to the innermost, whose neighbours are consecutive ranks; as
torchtitan lays out its mesh (torchtitan/distributed/parallel_dims.py)."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in row-major order over the axes; `degrees` goes along with AXES."""

    degrees: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.degrees) != len(AXES) or min(self.degrees) < 1:
            raise ValueError(f"a mesh has a degree from 1 for each of {AXES}, not {self.degrees}")

    @classmethod
    def of(cls, parallel: Parallel) -> Mesh:
        """The mesh that a job asks for."""
        degrees = axis_degrees(parallel)
        return cls(tuple(degrees[axis] for axis in AXES))

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return math.prod(self.degrees)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis; ValueError if the world has no such rank."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in a world of {self.world_size}")
        found: dict[str, int] = {}
        for axis, degree in zip(reversed(AXES), reversed(self.degrees), strict=True):
            rank, found[axis] = divmod(rank, degree)
        return {axis: found[axis] for axis in AXES}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank that stands there; axes that are not named count as 0. ValueError if nobody can stand there."""
        if unknown := coordinates.keys() - set(AXES):
            raise ValueError(f"no axes: {', '.join(sorted(unknown))}")
        rank = 0
        for axis, degree in zip(AXES, self.degrees, strict=True):
            coordinate = coordinates.get(axis, 0)
            if not 0 <= coordinate < degree:
                raise ValueError(f"{axis} {coordinate} is not in a degree of {degree}")
            rank = rank * degree + coordinate
        return rank
