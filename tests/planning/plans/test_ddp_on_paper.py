"""What DistributedDataParallel holds, option by option. The reducer is PyTorch's own; its peers are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.events import Alloc, Category, Phase, Role
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


def test_a_gradient_is_born_outside_its_bucket_and_moved_into_it(planned: Planned) -> None:
    """So with views a backward needs room for the gradients on their way, and for those that are set to None only."""
    job = planned(ddp={"gradient_as_bucket_view": True}, **SMALL)

    births = [birth for _, birth, death in blocks(job, Category.GRADIENT) if birth == death]
    assert births.count("backward 2") == 21


def test_the_initial_sync_takes_a_flat_copy_of_the_parameters_and_leaves_nothing(planned: Planned) -> None:
    with_sync, without = (planned(ddp={"arguments": {"init_sync": each}}) for each in (True, False))

    assert asked_for(with_sync, Phase.LOAD, 0).count(P) == asked_for(without, Phase.LOAD, 0).count(P) + 1
    assert with_sync.after("load", 0) == without.after("load", 0)


def test_the_initial_sync_of_two_dtypes_takes_a_flat_copy_of_each(planned: Planned) -> None:
    more = sorted(asked_for(planned("Mixed", ddp={}), Phase.LOAD, 0))
    for size in asked_for(planned("Mixed", ddp={"arguments": {"init_sync": False}}), Phase.LOAD, 0):
        more.remove(size)

    assert [size for size in more if size >= 512] == []  # one tensor of a dtype is its own flat copy


def test_parameters_of_two_dtypes_are_in_two_buckets(planned: Planned) -> None:
    job = planned("Mixed", ddp={})

    assert sorted(at_the_end(job)) == sorted(sizes(job, "rebuilt_bucket_sizes")) == [WEIGHT, 2 * WEIGHT]
    assert sorted(job.trace.buckets["dtypes"].split(", ")) == ["double", "float"]


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
