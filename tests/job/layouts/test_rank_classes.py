"""Which ranks do the same thing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.job.layout import (
    MESH_AXES,
    SHARDING,
    Mesh,
    RankClass,
    rank_classes,
    representatives,
    split_by_parts,
    split_by_shards,
)
from planner.job.rank_sets import RankSet
from planner.job.schema import Cp, DpReplicate, DpShard, Parallel, Pp, Tp


def replicas(degree: int) -> Mesh:
    return Mesh.of(Parallel(dp_replicate=DpReplicate(degree=degree)))


def test_all_replicas_are_one_class() -> None:
    (found,) = rank_classes(replicas(8))

    assert found == RankClass(0, RankSet(((0, 7),)), dict.fromkeys(MESH_AXES, 0))
    assert str(found.ranks) == "0-7"


@given(st.integers(1, 10_000))
def test_each_rank_is_in_one_class_and_the_lowest_speaks_for_it(degree: int) -> None:
    mesh = replicas(degree)
    classes = rank_classes(mesh)

    assert RankSet.of(span for found in classes for span in found.ranks.spans) == RankSet.world(mesh.world_size)
    assert sum(len(found.ranks) for found in classes) == mesh.world_size
    assert [found.representative for found in classes] == [next(iter(found.ranks)) for found in classes]
    assert [found.coordinates for found in classes] == [mesh.coordinates(found.representative) for found in classes]


@given(st.tuples(*(st.integers(1, 4) for _ in MESH_AXES)), st.integers(0, 20))
@settings(deadline=None)
def test_representatives_are_those_of_the_first_classes(degrees: tuple[int, ...], most: int) -> None:
    mesh = Mesh(degrees)

    assert representatives(mesh, most) == tuple(each.representative for each in rank_classes(mesh))[:most]


def test_the_first_of_a_million_million_classes_cost_no_more_than_those_of_a_few() -> None:
    mesh = Mesh.of(Parallel(pp=Pp(degree=10**6), cp=Cp(degree=10**6)))

    assert representatives(mesh, 3) == (0, 1, 2)


def test_a_world_of_a_million_million_ranks_costs_no_more_than_one_of_eight() -> None:
    """A list of these ranks would need terabytes."""
    (found,) = rank_classes(replicas(10**12))

    assert found.ranks.spans == ((0, 10**12 - 1),)
    assert len(found.ranks) == 10**12
    assert 10**12 - 1 in found.ranks
    assert 10**12 not in found.ranks


def test_every_stage_of_a_pipeline_is_a_class_of_its_own_and_the_other_axes_are_alike() -> None:
    mesh = Mesh.of(Parallel(pp=Pp(degree=2), dp_shard=DpShard(degree=4), tp=Tp(degree=8)))

    assert [str(found.ranks) for found in rank_classes(mesh)] == ["0-31", "32-63"]


def test_shards_that_do_not_divide_make_classes_by_what_their_ranks_hold() -> None:
    """10 rows over 4 ranks: 3, 3, 3, 1; 5 rows: 2, 2, 1, 0."""
    mesh = Mesh.of(Parallel(dp_replicate=DpReplicate(degree=2), dp_shard=DpShard(degree=4)))
    (only,) = rank_classes(mesh)

    assert split_by_shards(mesh, only, [8, 12]) == (only,)
    assert [str(part.ranks) for part in split_by_shards(mesh, only, [8, 10])] == ["0-2,4-6", "3,7"]
    assert [str(part.ranks) for part in split_by_shards(mesh, only, [10, 5])] == ["0-1,4-5", "2,6", "3,7"]


@given(st.tuples(*[st.integers(1, 3)] * len(MESH_AXES)).map(Mesh), st.lists(st.integers(1, 40), max_size=3))
def test_parts_by_shards_are_all_ranks_of_the_class_and_ranks_of_one_part_hold_the_same_rows(
    mesh: Mesh, dims: list[int]
) -> None:
    for whole in rank_classes(mesh):
        parts = split_by_shards(mesh, whole, dims)

        assert RankSet.of(span for part in parts for span in part.ranks.spans) == whole.ranks
        assert sum(len(part.ranks) for part in parts) == len(whole.ranks)
        held = [{rows_of(mesh, rank, tuple(dims)) for rank in part.ranks} for part in parts]
        assert all(len(rows) == 1 for rows in held)
        assert len({row for rows in held for row in rows}) == len(parts)


def rows_of(mesh: Mesh, rank: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """As torch.chunk gives them out, one by one."""
    at, degree, shard = mesh.coordinates(rank), 1, 0
    for axis in SHARDING:
        each = mesh.degrees[MESH_AXES.index(axis)]
        degree, shard = degree * each, shard * each + at[axis]
    return tuple(len(range(size)[shard * -(-size // degree) : (shard + 1) * -(-size // degree)]) for size in dims)


def test_a_rank_of_sixteen_thousand_is_found_at_once() -> None:
    mesh = Mesh.of(Parallel(pp=Pp(degree=16), dp_shard=DpShard(degree=128), tp=Tp(degree=8)))

    classes = rank_classes(mesh)

    assert [len(found.ranks) for found in classes] == [1024] * 16
    assert [len(found.ranks.spans) for found in classes] == [1] * 16


def test_every_place_of_a_ring_of_attention_is_a_class_of_its_own() -> None:
    mesh = Mesh.of(Parallel(dp_shard=DpShard(degree=2), cp=Cp(degree=2), tp=Tp(degree=2)))

    first, second = rank_classes(mesh)

    assert [str(first.ranks), str(second.ranks)] == ["0-1,4-5", "2-3,6-7"]
    assert [str(part.ranks) for part in split_by_shards(mesh, first, [7])] == ["0-1,4-5"]
    assert [str(part.ranks) for part in split_by_shards(mesh, second, [7])] == ["2-3", "6-7"]


def test_replicas_that_have_other_parts_of_an_optimizer_are_classes_of_their_own() -> None:
    mesh = Mesh.of(Parallel(dp_replicate=DpReplicate(degree=6)))
    (only,) = rank_classes(mesh)

    assert split_by_parts(mesh, only, ()) == (only,)
    assert split_by_parts(mesh, only, [0] * 6) == (only,)
    assert [str(part.ranks) for part in split_by_parts(mesh, only, [0, 1, 2, 1, 2, 2])] == ["0", "1,3", "2,4-5"]
    assert [part.representative for part in split_by_parts(mesh, only, [0, 1, 2, 1, 2, 2])] == [0, 1, 2]
