"""The device mesh of a job, where each rank stands on it, and which ranks do the same thing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.job.rank_sets import RankSet
from planner.job.schema import Job, Parallel, Train

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
"""In the order of the job spec."""
DISTINCT_AXES = ("pp", "cp")
"""Axes along which no two ranks do the same: each stage of a pipeline is its own, and each place in the ring of
attention takes another part of the queries and keys (torch 2.13, _context_parallel/_attention.py)."""


def axis_degrees(parallel: Parallel) -> dict[str, int]:
    """The degree of every axis, in the order of the job spec."""
    return {name: getattr(parallel, name).degree for name in AXES}


def tokens_of_step(job: Job) -> int:
    """Of an optimizer step, of all ranks; 0 of a job without sequences."""
    train, degrees = job.train, axis_degrees(job.parallel)
    ranks = degrees["dp_replicate"] * degrees["dp_shard"] * degrees["ep"]
    return train.gradient_accumulation_steps * train.micro_batch_size * (train.sequence_length or 0) * ranks


MESH_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
"""From the outermost, whose neighbours are far apart, to the innermost, whose neighbours are consecutive ranks; as
torchtitan lays out its mesh (torchtitan/distributed/parallel_dims.py)."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in row-major order over the axes; `degrees` goes along with AXES."""

    degrees: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.degrees) != len(MESH_AXES) or min(self.degrees) < 1:
            raise ValueError(f"a mesh has a degree from 1 for each of {MESH_AXES}, not {self.degrees}")

    @classmethod
    def of(cls, parallel: Parallel) -> Mesh:
        """The mesh that a job asks for."""
        degrees = axis_degrees(parallel)
        return cls(tuple(degrees[axis] for axis in MESH_AXES))

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return math.prod(self.degrees)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each axis; ValueError if the world has no such rank."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is not in a world of {self.world_size}")
        places: dict[str, int] = {}
        for axis, degree in zip(reversed(MESH_AXES), reversed(self.degrees), strict=True):
            rank, places[axis] = divmod(rank, degree)
        return {axis: places[axis] for axis in MESH_AXES}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """The rank that stands there; axes that are not named count as 0. ValueError if nobody can stand there."""
        if unknown := coordinates.keys() - set(MESH_AXES):
            raise ValueError(f"no axes: {', '.join(sorted(unknown))}")
        rank = 0
        for axis, degree in zip(MESH_AXES, self.degrees, strict=True):
            coordinate = coordinates.get(axis, 0)
            if not 0 <= coordinate < degree:
                raise ValueError(f"{axis} {coordinate} is not in a degree of {degree}")
            rank = rank * degree + coordinate
        return rank


_ALIKE = frozenset(MESH_AXES) - frozenset(DISTINCT_AXES)
"""Axes along which every rank does the same, as long as what is split over them splits evenly. Along `pp` every stage
is its own. Along `cp` each rank is: in the ring of attention it takes half of the queries in some steps, half of the
keys in the others, and how many of each goes by its place (torch 2.13, _context_parallel/_attention.py)."""
_WRITTEN_BY_THE_FIRST = ("full_state_dict", "huggingface")
"""Kinds of `train.checkpoint_save`."""
SHARDING = ("dp_shard", "cp", "ep")
"""Axes over which parameters are sharded together: their ranks hold the same model and see other tokens."""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do the same thing; the `representative` is the lowest, the `coordinates` are its own."""

    representative: int
    ranks: RankSet
    coordinates: Mapping[str, int]


def rank_classes(mesh: Mesh) -> tuple[RankClass, ...]:
    """The classes of a world, by ascending representative; together they are all of its ranks, each once."""
    by_axis: list[list[Sequence[int]]] = [
        [range(degree)] if axis in _ALIKE else [range(place, place + 1) for place in range(degree)]
        for axis, degree in zip(MESH_AXES, mesh.degrees, strict=True)
    ]
    return _sorted(_class(mesh, RankSet.of(_spans(mesh, chosen))) for chosen in itertools.product(*by_axis))


def representatives(mesh: Mesh, most: int) -> tuple[int, ...]:
    """The representatives of the first classes, at most so many, ascending; costs no more than their number."""
    places = itertools.product(
        *(range(1) if axis in _ALIKE else range(degree) for axis, degree in zip(MESH_AXES, mesh.degrees, strict=True))
    )
    # In the order of the axes, outermost first, a rank grows with its coordinates.
    return tuple(mesh.rank(dict(zip(MESH_AXES, place, strict=True))) for place in itertools.islice(places, most))


def parts_of(mesh: Mesh, rank_class: RankClass, dims: Iterable[int], parts: Sequence[int]) -> tuple[RankClass, ...]:
    """The classes into which one falls by what its first rank found out: dims of these sizes are sharded, replicas
    have these parts of what is divided among them. Not both at once."""
    return split_by_parts(mesh, rank_class, parts) if parts else split_by_shards(mesh, rank_class, dims)


def split_by_shards(mesh: Mesh, rank_class: RankClass, dims: Iterable[int]) -> tuple[RankClass, ...]:
    """The classes into which one falls because dims of these sizes do not divide over the ranks that shard them.

    They are split as `torch.chunk` splits: the first ranks get the rows rounded up, the last may get fewer or none.
    """
    degree = math.prod(mesh.degrees[MESH_AXES.index(axis)] for axis in SHARDING)
    bounds = sorted({0, degree} | {bound for size in dims for bound in _bounds(size, degree)})
    if len(bounds) == 2:
        return (rank_class,)
    parts = [RankSet.of(_of_shards(mesh, rank_class, first, after)) for first, after in itertools.pairwise(bounds)]
    return _sorted(_class(mesh, ranks) for ranks in parts if ranks.spans)


def split_by_parts(mesh: Mesh, rank_class: RankClass, parts: Sequence[int]) -> tuple[RankClass, ...]:
    """The classes into which one falls because replicas have different parts of what is divided among them.

    `parts` has for each coordinate of `dp_replicate` the number of its part: where two are equal, the ranks do the
    same. Not for a world that shards: there the ranks of one shard would have to be told apart as well.
    """
    if len(set(parts)) < 2:
        return (rank_class,)
    coordinates: dict[int, list[int]] = {}
    for coordinate, part in enumerate(parts):
        coordinates.setdefault(part, []).append(coordinate)
    return _sorted(
        _class(mesh, RankSet.of(_spans(mesh, _chosen(mesh, rank_class, {"dp_replicate": replicas}))))
        for replicas in coordinates.values()
    )


def first_rank_differs(train: Train) -> bool:
    """Whether rank 0 does what nobody else does: it writes a whole checkpoint, or alone reads one that it sends."""
    load, save = train.checkpoint_load, train.checkpoint_save
    reads = load is not None and load.kind == "full_state_dict_from_rank0"
    return reads or (save is not None and save.kind in _WRITTEN_BY_THE_FIRST)


def set_first_apart(mesh: Mesh, classes: Sequence[RankClass]) -> tuple[RankClass, ...]:
    """The same classes, but that rank 0 is one of its own: it does what nobody else does."""
    apart: list[RankClass] = []
    for rank_class in classes:
        others = [(max(first, 1), last) for first, last in rank_class.ranks.spans if last > 0]
        if 0 in rank_class.ranks:
            apart.append(_class(mesh, RankSet(((0, 0),))))
        if others:
            apart.append(_class(mesh, RankSet.of(others)))
    return _sorted(apart)


def _bounds(size: int, degree: int) -> tuple[int, int]:
    """After how many ranks the rows are no longer whole, and after how many there are none."""
    rows = -(-size // degree)
    return size // rows, -(-size // rows)


def _of_shards(mesh: Mesh, rank_class: RankClass, first: int, after: int) -> Iterator[tuple[int, int]]:
    """The ranks of the class that hold the shards from `first` to before `after`, as spans."""
    for box in _boxes([mesh.degrees[MESH_AXES.index(axis)] for axis in SHARDING], first, after):
        at = dict(zip(SHARDING, box, strict=True))
        if all(axis in _ALIKE or rank_class.coordinates[axis] in places for axis, places in at.items()):
            yield from _spans(
                mesh, _chosen(mesh, rank_class, {axis: places for axis, places in at.items() if axis in _ALIKE})
            )


def _boxes(degrees: Sequence[int], first: int, after: int) -> Iterator[tuple[range, ...]]:
    """Ranges of coordinates, outermost first, that together are the numbers from `first` to before `after`."""
    inner = degrees[1:]
    size = math.prod(inner)
    whole = range(-(-first // size), after // size)
    if whole:
        yield whole, *map(range, inner)
    for begin, end in ((first, min(after, whole.start * size)), (max(whole.start, whole.stop) * size, after)):
        if begin < end:
            outer = begin // size
            for box in _boxes(inner, begin - outer * size, end - outer * size):
                yield range(outer, outer + 1), *box


def _chosen(mesh: Mesh, rank_class: RankClass, at: Mapping[str, Sequence[int]]) -> list[Sequence[int]]:
    """Of each axis the coordinates of a class, where `at` has no others."""
    chosen: list[Sequence[int]] = []
    for axis, degree in zip(MESH_AXES, mesh.degrees, strict=True):
        here = rank_class.coordinates[axis]
        chosen.append(at.get(axis, range(degree) if axis in _ALIKE else range(here, here + 1)))
    return chosen


def _sorted(classes: Iterable[RankClass]) -> tuple[RankClass, ...]:
    return tuple(sorted(classes, key=lambda rank_class: rank_class.representative))


def _class(mesh: Mesh, ranks: RankSet) -> RankClass:
    representative = ranks.spans[0][0]
    return RankClass(representative, ranks, mesh.coordinates(representative))


def _spans(mesh: Mesh, chosen: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The ranks at all combinations of coordinates, as spans: of 16,384 ranks a few."""
    spans, inner = [(0, 0)], 1
    for coordinates, degree in zip(reversed(chosen), reversed(mesh.degrees), strict=True):
        if spans == [(0, inner - 1)] and isinstance(coordinates, range) and coordinates.step == 1:
            spans = [(coordinates.start * inner, coordinates.stop * inner - 1)]
        else:
            spans = [(first + c * inner, last + c * inner) for c in coordinates for first, last in spans]
        inner *= degree
    return spans
