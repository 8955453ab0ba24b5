"""What DistributedDataParallel holds, option by option. The reducer is PyTorch's own; its peers are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.events import Alloc, Category, Phase, Role
from planner.job.schema import Optimizer
from planner.report.attribution import Life, lives, phase_spans

Planned = Callable[..., Any]
EMBEDDING = 4 * 512 * 128
P = 2 * EMBEDDING + 4 * (2 * (4 * 128 * 128 + 3 * 128 * 256 + 2 * 128) + 128)
WEIGHT = 4 * 128 * 128
SMALL: dict[str, Any] = {"micro_batch_size": 1, "sequence_length": 8}
"""So few activations that what happens at the end of the backward is seen at the peak."""


def sizes(job: Any, key: str) -> list[int]:
    """A list of sizes out of the reducer's account of itself."""
    return [int(size) for size in job.trace.buckets[key].split(", ")]


def blocks(job: Any, category: Category) -> list[tuple[int, str, str]]:
    """Bytes of every block that ever was of the category, and the phases in which it came and went."""
    events = job.trace.events

    def when(moment: int) -> str:
        found = (s for s in phase_spans(events) if s.first <= moment < s.last)
        return next((f"{stretch.phase} {stretch.iteration}" for stretch in found), "end")

    def was(life: Life) -> bool:
        return any(role.category is category for _, role in life.roles)

    return [(life.requested_bytes, when(life.birth), when(life.death)) for life in lives(events).values() if was(life)]


def at_the_end(job: Any) -> list[int]:
    return [size for size, _, death in blocks(job, Category.BUCKET) if death == "end"]


def asked_for(job: Any, phase: Phase, iteration: int) -> list[int]:
    """Every size that was asked for in a phase."""
    found = [s for s in phase_spans(job.trace.events) if (s.phase, s.iteration) == (phase, iteration)]
    events = [event for s in found for event in job.trace.events[s.first : s.last]]
    return [event.requested_bytes for event in events if isinstance(event, Alloc)]


def test_there_is_one_bucket_with_everything_until_the_second_iteration(planned: Planned) -> None:
    job = planned(ddp={"bucket_cap_mb": 0.25})

    first = [block for block in blocks(job, Category.BUCKET) if block[1] == "load 0"]
    assert first == [(P, "load 0", "forward 2")]
    assert sizes(job, "bucket_sizes") == [P]


def test_buckets_are_rebuilt_in_the_second_iteration_each_as_large_as_the_cap_lets_it(planned: Planned) -> None:
    job = planned(ddp={"bucket_cap_mb": 0.25})

    cap = 2**18
    assert job.trace.buckets["has_rebuilt_buckets"] == 1
    assert at_the_end(job) == sizes(job, "rebuilt_bucket_sizes")
    assert sum(at_the_end(job)) == P
    # A bucket is closed by the gradient that fills it.
    assert all(cap <= size < cap + EMBEDDING for size in at_the_end(job)[:-1])


def test_a_smaller_cap_makes_more_buckets(planned: Planned) -> None:
    counts = [len(at_the_end(planned(ddp={"bucket_cap_mb": cap}))) for cap in (0.1, 0.5, 1, 25)]

    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 5
    assert counts[-1] == 1


def test_the_old_bucket_is_gone_before_the_new_ones_come(planned: Planned) -> None:
    found = lives(planned(ddp={}, **SMALL).trace.events).values()

    old, new = (life for life in found if any(role.category is Category.BUCKET for _, role in life.roles))
    assert old.death < new.birth


def test_since_torch_2_8_the_old_bucket_stays_until_the_watchdog_has_looked(planned: Planned) -> None:
    """Three iterations of a small model are over before it does, those of a larger one are not."""
    (old, new) = blocks(planned(ddp={}, torch="2.8"), Category.BUCKET)
    assert (old[2], new[1]) == ("end", "forward 2")

    long = planned(ddp={}, torch="2.8", micro_batch_size=64, sequence_length=8192)
    assert [death for _, birth, death in blocks(long, Category.BUCKET) if birth == "load 0"] == ["backward 3"]


def test_where_unused_parameters_are_looked_for_buckets_have_the_cap_at_once_and_are_never_rebuilt(
    planned: Planned,
) -> None:
    job = planned(ddp={"bucket_cap_mb": 0.25, "find_unused_parameters": True})

    used_map = 4 * 21  # a number for each of the parameter tensors
    assert job.trace.buckets["has_rebuilt_buckets"] == 0
    assert at_the_end(job) == [*sizes(job, "bucket_sizes"), used_map]
    assert len(sizes(job, "bucket_sizes")) > 5


def test_parameters_that_are_never_used_have_room_in_a_bucket_and_no_gradient(planned: Planned) -> None:
    held = planned("Half", ddp={"find_unused_parameters": True}).after("backward", 2)

    assert held["bucket"] == 2 * WEIGHT + 512
    assert held["gradient"] == WEIGHT


def test_a_static_graph_needs_no_search_for_unused_parameters(planned: Planned) -> None:
    job = planned("Half", ddp={"static_graph": True})

    assert job.trace.buckets["static_graph"] == 1
    assert job.after("backward", 2)["gradient"] == WEIGHT


def test_a_static_graph_rebuilds_its_buckets_in_the_third_iteration(planned: Planned) -> None:
    job = planned(ddp={"bucket_cap_mb": 0.25, "static_graph": True})

    assert {birth for _, birth, death in blocks(job, Category.BUCKET) if death == "end"} == {"forward 3"}


def test_views_save_the_gradients_at_the_end_of_the_backward_and_in_the_step(planned: Planned) -> None:
    copy, view = (planned(ddp={"gradient_as_bucket_view": each}, **SMALL) for each in (False, True))

    assert copy.phase("backward", 2).end_allocated_bytes - view.phase("backward", 2).end_allocated_bytes == P
    steps = (job.phase("optimizer_step", 2).peak_allocated_bytes for job in (copy, view))
    assert next(steps) - next(steps) == P


def test_a_gradient_is_born_outside_its_bucket_and_moved_into_it(planned: Planned) -> None:
    """So with views a backward needs room for the gradients on their way, and for those that are set to None only."""
    job = planned(ddp={"gradient_as_bucket_view": True}, **SMALL)

    births = [birth for _, birth, death in blocks(job, Category.GRADIENT) if birth == death]
    assert births.count("backward 2") == 21


def test_the_initial_sync_takes_a_flat_copy_of_the_parameters_and_leaves_nothing(planned: Planned) -> None:
    with_sync, without = (planned(ddp={"init_sync": each}) for each in (True, False))

    assert asked_for(with_sync, Phase.LOAD, 0).count(P) == asked_for(without, Phase.LOAD, 0).count(P) + 1
    assert with_sync.after("load", 0) == without.after("load", 0)


def test_the_initial_sync_of_two_dtypes_takes_a_flat_copy_of_each(planned: Planned) -> None:
    more = sorted(asked_for(planned("Mixed", ddp={}), Phase.LOAD, 0))
    for size in asked_for(planned("Mixed", ddp={"init_sync": False}), Phase.LOAD, 0):
        more.remove(size)

    assert [size for size in more if size >= 512] == []  # one tensor of a dtype is its own flat copy


def test_parameters_of_two_dtypes_are_in_two_buckets(planned: Planned) -> None:
    job = planned("Mixed", ddp={})

    assert sorted(at_the_end(job)) == sorted(sizes(job, "rebuilt_bucket_sizes")) == [WEIGHT, 2 * WEIGHT]
    assert sorted(job.trace.buckets["dtypes"].split(", ")) == ["double", "float"]


def test_buffers_are_broadcast_before_each_forward_through_a_flat_copy(planned: Planned) -> None:
    """Of a batch norm: mean and variance together; the count alone is its own flat copy."""
    with_buffers, without = (planned("normed", ddp={"broadcast_buffers": each}) for each in (True, False))

    for iteration in (1, 2, 3):
        more = sorted(asked_for(with_buffers, Phase.FORWARD, iteration))
        for size in asked_for(without, Phase.FORWARD, iteration):
            more.remove(size)
        assert more == [2 * 4 * 128]


def test_buffers_are_in_no_bucket(planned: Planned) -> None:
    job = planned("normed", ddp={})

    trained = 2 * (WEIGHT + 4 * 128) + 2 * 4 * 128
    assert at_the_end(job) == [trained]
    assert job.after("load", 0)["parameter"] == trained + 2 * 4 * 128 + 512


def test_frozen_parameters_are_in_no_bucket(planned: Planned) -> None:
    assert at_the_end(planned("frozen", ddp={})) == [2 * WEIGHT]


@pytest.mark.parametrize("hook", ["fp16_compress", "bf16_compress"])
def test_a_compressing_hook_takes_half_a_bucket_when_it_is_reduced_and_leaves_nothing(
    planned: Planned, hook: str
) -> None:
    plain, compressed = planned(ddp={}, **SMALL), planned(ddp={"comm_hook": hook}, **SMALL)

    backward = asked_for(compressed, Phase.BACKWARD, 2)
    assert backward.count(P // 2) - asked_for(plain, Phase.BACKWARD, 2).count(P // 2) == 1
    assert compressed.after("backward", 2) == plain.after("backward", 2)
    assert compressed.trace.buckets["comm_hook"] == f"{hook}_hook"


def test_power_sgd_keeps_an_error_as_large_as_the_gradients_and_two_thin_matrices(planned: Planned) -> None:
    """Only from the iteration on in which it begins to compress, so one more is planned than is asked for."""
    job = planned(ddp={"comm_hook": "power_sgd"}, iterations=3)

    assert job.statement.phases[-1].iteration == 4
    assert "communication" not in job.after("backward", 2)
    for phase in ("forward", "backward", "optimizer_step"):
        assert P < job.after(phase, 4)["communication"] < 1.02 * P


def test_under_no_sync_only_the_last_micro_batch_is_reduced(planned: Planned) -> None:
    def reductions(no_sync: bool) -> int:
        hook = {"comm_hook": "fp16_compress", "no_sync": no_sync}
        job = planned(ddp=hook, gradient_accumulation_steps=2, **SMALL)
        return asked_for(job, Phase.BACKWARD, 2).count(P // 2)

    assert (reductions(True), reductions(False)) == (1, 2)


def test_without_no_sync_buckets_are_rebuilt_in_the_second_micro_batch(planned: Planned) -> None:
    def rebuilt(no_sync: bool) -> set[str]:
        job = planned(ddp={"no_sync": no_sync}, gradient_accumulation_steps=3, **SMALL)
        return {birth for _, birth, death in blocks(job, Category.BUCKET) if death == "end"}

    assert (rebuilt(True), rebuilt(False)) == ({"forward 2"}, {"forward 1"})


def test_buckets_are_told_as_such_from_their_birth(planned: Planned) -> None:
    events = planned(ddp={}).trace.events

    first = next(i for i, event in enumerate(events) if isinstance(event, Role) and event.category is Category.BUCKET)
    assert isinstance(events[first - 1], Alloc)
    assert events[first - 1].block == events[first].block


def test_the_number_of_ranks_changes_nothing_but_the_check_of_the_initial_sync(planned: Planned) -> None:
    two, many = planned(ddp={"degree": 2}), planned(ddp={"degree": 512})

    for phase, iteration in ((p.phase, p.iteration) for p in two.statement.phases[1:]):
        assert asked_for(two, phase, iteration) == asked_for(many, phase, iteration)
    shapes = len(asked_for(many, Phase.LOAD, 0)) - len(asked_for(two, Phase.LOAD, 0))
    assert shapes == 512 - 2


def test_adam_under_ddp_needs_five_times_the_parameters_or_four_with_views(planned: Planned) -> None:
    def standing(view: bool) -> int:
        held = planned(ddp={"gradient_as_bucket_view": view}, optimizer=Optimizer(name="Adam")).after("backward", 2)
        return sum(held.get(c, 0) for c in ("parameter", "gradient", "bucket", "optimizer_state"))

    assert (standing(False), standing(True)) == (5 * P, 4 * P)
