"""Nodes and their real ranks: which nodes are alike, and what their ranks are together."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from planner.allocator.host.nodes import TracedHost, node_kinds, state_hosts
from planner.allocator.host.statement import HostPeak, HostStatement, NodeStatement
from planner.events import Mark, Phase
from planner.host_events import HostAlloc, HostCategory, HostFree
from planner.job.rank_sets import RankSet


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_every_node_has_the_ranks_that_it_has(class_of: list[int], ranks_per_node: int) -> None:
    places = sorted(set(class_of))
    sets = [RankSet.of((rank, rank) for rank, each in enumerate(class_of) if each == place) for place in places]

    found = {node: dict(counts) for nodes, counts in node_kinds(sets, ranks_per_node) for node in nodes}

    assert found == {
        node: dict(Counter(places.index(each) for each in class_of[first : first + ranks_per_node]))
        for node, first in enumerate(range(0, len(class_of), ranks_per_node))
    }


def test_kinds_of_nodes_do_not_grow_with_the_world() -> None:
    world = 2**20
    kinds = node_kinds([RankSet(((0, world // 2 - 1),)), RankSet(((world // 2, world - 1),))], 8)

    assert [(str(nodes), counts) for nodes, counts in kinds] == [
        ("0-65535", ((0, 8),)), ("65536-131071", ((1, 8),)),
    ]  # fmt: skip
    assert sum(len(nodes) for nodes, _ in kinds) == world // 8


def held(block: int, size: int) -> HostAlloc:
    return HostAlloc(block, size, HostCategory.CHECKPOINT)


def state(*hosts: TracedHost, ranks_per_node: int, capacity_bytes: int = 0) -> HostStatement:
    return state_hosts(hosts, ranks_per_node=ranks_per_node, capacity_bytes=capacity_bytes, conf="")


def test_a_node_whose_ranks_differ_is_the_sum_of_its_real_ranks_phase_by_phase() -> None:
    step = Mark(Phase.OPTIMIZER_STEP, 1)
    large = TracedHost(RankSet(((0, 0),)), [held(1, 100), HostFree(1), step, held(2, 10)])
    small = TracedHost(RankSet(((1, 3),)), [held(1, 7), step, held(2, 50)])

    mixed, alike = state(large, small, ranks_per_node=2).nodes

    load = HostPeak(phase=Phase.LOAD, iteration=0, bytes=107)
    assert mixed == NodeStatement(
        nodes="0",
        ranks="0-1",
        peak=load,
        parts={HostCategory.CHECKPOINT: 107},
        phases=(load, HostPeak(phase=Phase.OPTIMIZER_STEP, iteration=1, bytes=67)),
    )
    assert (alike.nodes, alike.ranks, alike.peak.bytes) == ("1", "2-3", 114)


def test_the_rank_that_saves_finds_the_others_as_they_were_before() -> None:
    trains = [held(1, 1000), HostFree(1), Mark(Phase.OPTIMIZER_STEP, 1), held(2, 10)]
    saves = [Mark(Phase.CHECKPOINT_SAVE, 1), held(3, 500), HostFree(3)]

    found = state(
        TracedHost(RankSet(((0, 0),)), [*trains, *saves]), TracedHost(RankSet(((1, 7),)), trains), ranks_per_node=8
    )

    (node,) = found.nodes
    assert [(each.phase, each.bytes) for each in node.phases] == [
        (Phase.LOAD, 8000), (Phase.OPTIMIZER_STEP, 80), (Phase.CHECKPOINT_SAVE, 580),
    ]  # fmt: skip
    assert (node.bytes_in(Phase.OPTIMIZER_STEP, 7), node.bytes_in(Phase.EVAL, 1)) == (80, 0)
    assert found.verdict is None


def test_a_node_exceeds_by_what_it_surely_holds_and_never_surely_fits() -> None:
    host = TracedHost(RankSet(((0, 7),)), [held(1, 100)])

    verdicts = [state(host, ranks_per_node=8, capacity_bytes=capacity).verdict for capacity in (799, 800)]

    assert verdicts == ["exceeds", "not_known_to_exceed"]
