"""Tracing every rank of a small world gives what tracing one rank of each class gives, to the byte."""

from __future__ import annotations

import itertools

import pytest

from planner.allocator.replay import replay
from planner.allocator.rules import Rules
from planner.job.layout import Mesh, rank_classes
from planner.job.schema import Cluster, Cp, Decoder, DpShard, Gpu, Job, Model, Parallel, Tp, Train
from planner.tracing.job_program import trace
from planner.units import GIB

WORLDS = [degrees for degrees in itertools.product((1, 2), repeat=3) if max(degrees) > 1]
_DECODER = Decoder(layers=1, hidden=128, heads=4, kv_heads=2, ffn=256, vocab=512)


def job(shards: int, rings: int, splits: int, *, rotate: str = "allgather", precision: str = "bf16_autocast") -> Job:
    return Job(
        model=Model(decoder=_DECODER),
        train=Train(sequence_length=256, iterations=1, precision=precision),
        parallel=Parallel(
            dp_shard=DpShard(degree=shards),
            cp=Cp(degree=rings, rotate=rotate),
            tp=Tp(degree=splits, sequence_parallel=splits > 1, loss_parallel=splits > 1),
        ),
        cluster=Cluster(gpus_per_node=shards * rings * splits, gpu=Gpu(name="", total_bytes=80 * GIB, arch="sm_90")),
    )


def peaks(of: Job, rank: int) -> tuple[int, int]:
    timeline = replay(trace(of, rank).events, Rules.from_conf(""))
    return max(timeline.allocated_bytes), max(timeline.reserved_bytes)


@pytest.mark.parametrize("degrees", WORLDS, ids=str)
def test_every_rank_of_a_class_peaks_alike(degrees: tuple[int, int, int]) -> None:
    here = job(*degrees)

    for each in rank_classes(Mesh.of(here.parallel)):
        found = {rank: peaks(here, rank) for rank in each.ranks}
        assert set(found.values()) == {found[each.representative]}


def test_the_places_of_a_ring_differ() -> None:
    here = job(1, 4, 1, rotate="alltoall")

    assert len({peaks(here, rank) for rank in range(4)}) > 1
