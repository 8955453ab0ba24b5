"""Which ranks do the same thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.layout.mesh import AXES, Mesh
from planner.layout.rank_classes import RankClass, rank_classes
from planner.layout.rank_sets import RankSet
from planner.spec.job import DpReplicate, Parallel, Pp


def replicas(degree: int) -> Mesh:
    return Mesh.of(Parallel(dp_replicate=DpReplicate(degree=degree)))


def test_all_replicas_are_one_class() -> None:
    (found,) = rank_classes(replicas(8))

    assert found == RankClass(0, RankSet(((0, 7),)), dict.fromkeys(AXES, 0))
    assert str(found.ranks) == "0-7"


@given(st.integers(1, 10_000))
def test_each_rank_is_in_one_class_and_the_lowest_speaks_for_it(degree: int) -> None:
    mesh = replicas(degree)
    classes = rank_classes(mesh)

    assert RankSet.of(span for found in classes for span in found.ranks.spans) == RankSet.world(mesh.world_size)
    assert sum(len(found.ranks) for found in classes) == mesh.world_size
    assert [found.representative for found in classes] == [next(iter(found.ranks)) for found in classes]
    assert [found.coordinates for found in classes] == [mesh.coordinates(found.representative) for found in classes]


def test_a_world_of_a_million_million_ranks_costs_no_more_than_one_of_eight() -> None:
    """A list of these ranks would need terabytes."""
    (found,) = rank_classes(replicas(10**12))

    assert found.ranks.spans == ((0, 10**12 - 1),)
    assert len(found.ranks) == 10**12
    assert 10**12 - 1 in found.ranks
    assert 10**12 not in found.ranks


def test_an_axis_whose_ranks_may_differ_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="how the ranks along pp differ is not known"):
        rank_classes(Mesh.of(Parallel(pp=Pp(degree=2))))
