"""DeepSpeed's stages 1 and 2 by its own engine: beside its estimate, real runs over gloo, and plain training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from cpu_runs import Both, assert_exact, both_ways
from deepspeed_jobs import BF16, PAIRS, divided
from hypothesis import given
from hypothesis import strategies as st

from planner.events import Alloc, Category, Event, Free, Role
from planner.job.layout import Mesh, parts_of, rank_classes
from planner.job.schema import Cluster, Gpu, Job, Parallel
from planner.tracing.job_program import trace
from planner.training.wraps.deepspeed_engine import Partitions
from planner.truth.measuring.measurement_lines import most_by_category

BOTH = [(job.metadata.name, rank) for job in PAIRS for rank in (0, 1)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return both_ways(tmp_path_factory.mktemp("runs"), [(PAIRS, 2)], "deepspeed_stages_1_and_2")


@pytest.mark.parametrize(("name", "rank"), BOTH)
def test_a_real_step_takes_what_is_traced(runs: Both, name: str, rank: int) -> None:
    assert_exact(*runs[name, rank])


def cut_of(job: Job) -> Partitions:
    import torch

    from planner.training.models.build import build

    sizes = tuple(each.numel() for each in build(job.model, torch.device("meta")).parameters())
    return Partitions(sizes, job.parallel.dp_replicate.degree)


def at_the_end(events: Sequence[Event]) -> dict[Category, int]:
    """Requested bytes that are alive after the last event, by what they are for."""
    alive, roles = {}, {}
    for event in events:
        if isinstance(event, Alloc):
            alive[event.block] = event.requested_bytes
        elif isinstance(event, Free):
            del alive[event.block]
        elif isinstance(event, Role):
            roles[event.block] = event.category
    found: dict[Category, int] = {}
    for block, size in alive.items():
        category = roles.get(block, Category.OTHER)
        found[category] = found.get(category, 0) + size
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_parameters_states_and_gradients_are_those_of_deepspeeds_own_estimate(ranks: int) -> None:
    """estimate_zero2_model_states_mem_needs: 2 bytes a parameter on every rank; of each partition 4 of the master, 8 of
    the moments, 4 of fp32 gradient in the step, and 2 of 16-bit gradient. The last are more in DeepSpeed's own code
    than in its estimate: a rank keeps those of a parameter whole, however little of it is in its partition."""
    job = divided(ranks=ranks, config=BF16)
    cut, events = cut_of(job), trace(job).events
    after = at_the_end(events)

    assert after[Category.PARAMETER] == 2 * cut.total
    assert after[Category.OPTIMIZER_STATE] == 12 * cut.size
    assert after.get(Category.GRADIENT, 0) == after.get(Category.BUCKET, 0) == 0
    whole = sum(size for size, _ in cut.shares[0])
    assert most_by_category(events)[Category.GRADIENT] == 2 * whole + 4 * cut.size


def test_parameters_are_there_twice_while_they_are_flattened_unless_the_gpu_is_too_small() -> None:
    job = divided(config=BF16)
    small = replace(job, cluster=replace(job.cluster, gpu=Gpu(total_bytes=3 * cut_of(job).total, arch="sm_90")))

    there, not_there = (most_by_category(trace(each).events)[Category.PARAMETER] for each in (job, small))

    assert there == 4 * cut_of(job).total
    assert not_there < 2 * cut_of(job).total + 1024


def test_each_rank_does_what_the_first_of_its_class_does() -> None:
    job = divided(ranks=4, config=BF16)
    (only,) = rank_classes(Mesh.of(job.parallel))
    found = {rank: trace(job, rank) for rank in range(4)}

    classes = parts_of(Mesh.of(job.parallel), only, (), found[0].parts)

    for each in classes:
        most = [most_by_category(found[rank].events) for rank in each.ranks]
        assert all(one == most[0] for one in most)


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=12), ranks=st.integers(1, 12))
def test_every_element_has_one_owner(sizes: list[int], ranks: int) -> None:
    cut = Partitions((*sizes, 1), ranks)

    held = [sum(elements for _, elements in share) for share in cut.shares]
    assert sum(held) == sum(sizes) + 1
    assert max(held) <= cut.size
    assert cut.size % 2 == 0
    assert 0 <= cut.total - sum(cut.sizes) < 2 * ranks


def test_kinds_of_partitions_do_not_grow_with_the_world() -> None:
    assert len(set(Partitions((1000, *range(1, 300)), 64).kinds())) == 3


@pytest.mark.parametrize("stage", [1, 2])
def test_it_trains_as_the_plain_optimizer_does(stage: int) -> None:
    """One rank, on the host: the same parameters after two steps of two micro-batches."""
    import torch

    from planner.training import step

    job = divided(ranks=1, stage=stage, steps=2, reduce_bucket_size=100_000)
    plain = replace(job, parallel=Parallel())

    ours, theirs = (step.run(each, torch.device("cpu")).model for each in (job, plain))

    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("stage", [1, 2])
def test_steps_before_it_in_the_process_leave_no_memory_taken(stage: int) -> None:
    """DeepSpeed flattens parameters on the host where the device has no room for a copy of them."""
    with_room_for_one_engine = Cluster(gpus_per_node=2, gpu=Gpu(total_bytes=16 << 20, arch="sm_90"))
    job = replace(divided(stage=stage), cluster=with_room_for_one_engine)
    first, *others = [trace(job, 0).events for _ in range(4)]

    assert [events == first for events in others] == [True, True, True]
