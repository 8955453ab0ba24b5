"""Search, max and min give what planning every candidate gives: with real plans, and with any that could be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.job.bound.lower_bound import lower_bound
from planner.job.schema import Gpu, Job
from planner.searching.axes import axis_of
from planner.searching.engine import search
from planner.searching.exact_plans import Exact, Group, PlansHere, plan_here
from planner.searching.extremes import fewest, gpu_counts, largest
from planner.searching.space import (
    Candidate,
    Space,
    allocator_axis,
    broken_rule,
    global_batch_of,
    layout_axis,
    least_axes,
    usual_axes,
)
from planner.searching.weighing import Objective
from planner.units import MIB

SmallJob = Callable[..., Job]


def on(job: Job, total_bytes: int) -> Job:
    return replace(job, cluster=replace(job.cluster, gpu=Gpu(name="", total_bytes=total_bytes, arch="sm_90")))


def all_candidates(space: Space) -> list[Candidate]:
    found = [space.candidate(number) for number in range(space.size)]
    return [each for each in found if isinstance(each, Candidate) and not broken_rule(each.job)[0]]


def exact(job: Job) -> Exact:
    (answer,) = plan_here(Group((job,), PlansHere().calibration, whole=True))
    assert isinstance(answer, Exact)
    return answer


def test_a_search_gives_the_least_memory_of_all_candidates(small: SmallJob) -> None:
    job = small()
    fixed = {"pp": (1,), "cp": (1,), "tp": (1,)}
    space = Space(
        base=job,
        axes=(layout_axis(2, 2, fixed, job), axis_of("recompute", ["none", "full"]), allocator_axis(job)),
        global_batch=global_batch_of(job),
    )
    every = {each.index: exact(each.job) for each in all_candidates(space)}
    middle = sorted(each.device_bytes for each in every.values())[len(every) // 2]
    tight = replace(space, base=on(job, middle), kept=[])

    found = search(tight, PlansHere(), objective=Objective.MEMORY, top=2)

    fitting: dict[tuple[int, ...], tuple[int, int]] = {}
    for index, each in sorted(every.items()):
        if each.device_bytes <= middle:  # nobody's cache has to be released for it
            traced = space.choice(index)[:-1]  # the allocator's settings come last
            fitting[traced] = min(fitting.get(traced, (each.device_bytes, index)), (each.device_bytes, index))
    assert [row.exact.device_bytes for row in found.rows] == [size for size, _ in sorted(fitting.values())][:2]
    assert found.complete


def test_max_gives_the_largest_of_all_micro_batches(small: SmallJob) -> None:
    job = small(parallel={"dp_replicate": 1}, cluster={"gpus_per_node": 1})
    sizes = {size: exact(_sized(job, size)) for size in range(1, 7)}
    room = on(job, (sizes[4].device_bytes + sizes[5].device_bytes) // 2 // MIB * MIB)

    found = largest(room, "micro_batch_size", PlansHere())

    assert found.value == max(size for size in sizes if exact(_sized(room, size)).fits)
    assert found.beyond is not None
    assert not found.beyond.fits


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    growth=st.integers(1, 40), start=st.integers(0, 900), room=st.integers(1000, 3000),
    slack=st.lists(st.integers(0, 300), min_size=8, max_size=8), own=st.integers(1, 20),
)  # fmt: skip
def test_max_is_that_of_all_sizes_whatever_the_allocator_does(
    small: SmallJob, supposed: Any, growth: int, start: int, room: int, slack: list[int], own: int
) -> None:
    """Tensors grow with the size; what the allocator adds to them goes up and down."""
    job = on(small(train={"micro_batch_size": own}), 4 << 30)
    base = lower_bound(job).least_bytes
    job = on(job, base + room * MIB)

    def bytes_of(each: Job) -> tuple[int, int]:
        size = each.train.micro_batch_size
        allocated = base + (start + growth * size) * MIB
        return allocated + slack[size % len(slack)] * MIB, allocated

    plans = supposed(bytes_of)
    found = largest(job, "micro_batch_size", plans, most=300)

    fitting = [size for size in range(1, 301) if bytes_of(_sized(job, size))[0] <= job.cluster.gpu.total_bytes]
    assert found.value == max((size for size in fitting if not lower_bound(_sized(job, size)).exceeds), default=0)


def _sized(job: Job, size: int) -> Job:
    return replace(job, train=replace(job.train, micro_batch_size=size))


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.lists(st.integers(0, 500), min_size=13, max_size=13), share=st.floats(0.05, 0.95))
@pytest.mark.parametrize("objective", [Objective.COST, Objective.MEMORY, Objective.HEADROOM])
def test_a_search_finds_the_best_of_all_whatever_plans_say(
    small: SmallJob, supposed: Any, objective: Objective, noise: list[int], share: float
) -> None:
    """Plans say anything above the bound."""
    job = small(cluster={"gpu": {"name": "H100-SXM-80GB", "total_bytes": 2 << 30, "arch": "sm_90"}})
    space = Space(base=job, axes=tuple(usual_axes(job, 4, 4, 8, {"pp": (1, 2)})), global_batch=8)

    def bytes_of(each: Job) -> tuple[int, int]:
        turn = (each.parallel.tp.degree + 3 * each.train.gradient_accumulation_steps + len(each.allocator.conf)) % 13
        least = lower_bound(each).least_bytes
        return least + noise[turn] * MIB, least

    candidates = all_candidates(space)
    sizes = sorted(bytes_of(each.job)[0] for each in candidates)
    capacity = sizes[int(share * len(sizes))]
    base = replace(job, cluster=replace(job.cluster, gpu=Gpu(name="H100-SXM-80GB", total_bytes=capacity, arch="sm_90")))
    space = replace(space, base=base, kept=[])
    # A traced step takes at least as long as its products and collectives.
    plans = supposed(bytes_of, slowness_of=lambda each: 1 + (bytes_of(each)[0] // 7) % 10 / 10)

    found = search(space, plans, objective=objective, top=4)

    values = _values(space, plans, objective)
    assert [round(row.value, 15) for row in found.rows] == [round(value, 15) for value in values[:4]]
    assert found.complete


def _values(space: Space, plans: Any, objective: Objective) -> list[float]:
    """Of all that fit, one for each trace."""
    best: dict[tuple[int, ...], tuple[float, float]] = {}
    for each in all_candidates(space):
        said = plans.exact(each.job)
        if said.fits:
            value = objective.of(said)
            traced = each.choice[:-1]
            best[traced] = min(best.get(traced, (value, value)), (value, value))
    return sorted(value for value, _ in best.values())


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(needed=st.integers(1, 12), capacity=st.integers(700, 3000))
def test_min_is_the_first_number_that_any_layout_fits_on(
    small: SmallJob, supposed: Any, needed: int, capacity: int
) -> None:
    job = on(small(train={"micro_batch_size": 8}), capacity * MIB)

    def bytes_of(each: Job) -> tuple[int, int]:
        gpus = each.cluster.nodes * each.cluster.gpus_per_node
        size = max(lower_bound(each).least_bytes, needed * capacity * MIB // gpus)
        return size, size

    found = fewest(job, supposed(bytes_of), global_batch=16, per_node=4, most=16)

    def fits(gpus: int) -> bool:
        axes = least_axes(job, gpus, min(gpus, 4))
        space = Space(base=job, axes=tuple(axes), global_batch=16)
        every = [each for each in all_candidates(space) if not lower_bound(each.job).exceeds]
        return any(bytes_of(each.job)[0] <= capacity * MIB for each in every)

    assert found.gpus == next((gpus for gpus in gpu_counts(16, 4) if fits(gpus)), 0)
