"""Ranks and coordinates of a device mesh."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.job.layout import MESH_AXES, Mesh
from planner.job.schema import Cp, DpReplicate, DpShard, Ep, Parallel, Pp, Tp

small_meshes = st.tuples(*[st.integers(1, 4)] * len(MESH_AXES)).map(Mesh)


def test_a_mesh_takes_its_degrees_from_the_job() -> None:
    parallel = Parallel(
        dp_replicate=DpReplicate(degree=2),
        dp_shard=DpShard(degree=3),
        tp=Tp(degree=5),
        pp=Pp(degree=7),
        cp=Cp(degree=11),
        ep=Ep(degree=13),
    )

    mesh = Mesh.of(parallel)

    assert dict(zip(MESH_AXES, mesh.degrees, strict=True)) == {
        "pp": 7,
        "dp_replicate": 2,
        "dp_shard": 3,
        "cp": 11,
        "tp": 5,
        "ep": 13,
    }
    assert mesh.world_size == 2 * 3 * 5 * 7 * 11 * 13


def test_neighbours_along_tp_are_consecutive_ranks_and_along_pp_far_apart() -> None:
    mesh = Mesh.of(Parallel(dp_shard=DpShard(degree=4), tp=Tp(degree=8), pp=Pp(degree=2)))

    assert mesh.coordinates(0) == {"pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 0, "ep": 0}
    assert mesh.coordinates(9) == {"pp": 0, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 1, "ep": 0}
    assert mesh.rank({"pp": 1}) == 32


@given(small_meshes)
def test_every_place_has_one_rank_and_ranks_count_through_the_places_in_order(mesh: Mesh) -> None:
    places = [dict(zip(MESH_AXES, place, strict=True)) for place in itertools.product(*map(range, mesh.degrees))]

    assert [mesh.rank(place) for place in places] == list(range(mesh.world_size))
    assert [mesh.coordinates(rank) for rank in range(mesh.world_size)] == places
    assert mesh.world_size == math.prod(mesh.degrees)


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_of_the_world_has_no_place(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is not in a world of 8"):
        Mesh((1, 8, 1, 1, 1, 1)).coordinates(rank)


def test_nobody_stands_beyond_a_degree_or_on_an_axis_that_is_none() -> None:
    mesh = Mesh((1, 8, 1, 1, 1, 1))

    with pytest.raises(ValueError, match="dp_replicate 8 is not in a degree of 8"):
        mesh.rank({"dp_replicate": 8})
    with pytest.raises(ValueError, match="no axes: dp"):
        mesh.rank({"dp": 0})


@pytest.mark.parametrize("degrees", [(1, 1), (1, 0, 1, 1, 1, 1)])
def test_a_mesh_has_a_degree_for_each_axis(degrees: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a mesh has a degree from 1"):
        Mesh(degrees)
