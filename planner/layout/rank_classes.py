"""Which ranks do the same thing, so that one trace speaks for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.layout.mesh import AXES, Mesh
from planner.layout.rank_sets import RankSet

_ALIKE = frozenset({"dp_replicate"})
"""Axes along which every rank does the same: replicas hold the same parameters and see micro-batches of one shape."""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do the same thing; the `representative` is the lowest, the `coordinates` are its own."""

    representative: int
    ranks: RankSet
    coordinates: Mapping[str, int]


def rank_classes(mesh: Mesh) -> tuple[RankClass, ...]:
    """The classes of a world, by ascending representative; together they are all of its ranks, each once.

    Raises ValueError for an axis of which it is not known yet how its ranks differ.
    """
    for axis, degree in zip(AXES, mesh.degrees, strict=True):
        if degree > 1 and axis not in _ALIKE:
            raise ValueError(f"how the ranks along {axis} differ is not known")
    return (RankClass(0, RankSet.world(mesh.world_size), mesh.coordinates(0)),)
