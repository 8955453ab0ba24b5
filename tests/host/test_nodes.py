"""Nodes and their real ranks: which nodes are alike, and what their ranks are together."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from planner.allocator.host.nodes import RankOnHost, node_kinds, sum_nodes
from planner.allocator.host.processes import PinnedRules
from planner.allocator.host.replay import RankTimeline, replay_host
from planner.allocator.host.statement import HostPeak, HostPhaseStatement, NodeStatement, RankHost
from planner.events import Mark, Phase
from planner.host_events import Backing, HostAlloc, HostBlock, HostCategory, HostEvent, HostFree
from planner.job.rank_sets import RankSet
from planner.job.schema import DataLoader


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
def test_every_node_has_the_ranks_that_it_has(class_of: list[int], ranks_per_node: int) -> None:
    places = sorted(set(class_of))
    sets = [RankSet.of((rank, rank) for rank, each in enumerate(class_of) if each == place) for place in places]

    found = {node: dict(kind.counts) for kind in node_kinds(sets, ranks_per_node) for node in kind.nodes}

    assert found == {
        node: dict(Counter(places.index(each) for each in class_of[first : first + ranks_per_node]))
        for node, first in enumerate(range(0, len(class_of), ranks_per_node))
    }


def test_kinds_of_nodes_do_not_grow_with_the_world() -> None:
    world = 2**20
    kinds = node_kinds([RankSet(((0, world // 2 - 1),)), RankSet(((world // 2, world - 1),))], 8)

    assert [(str(kind.nodes), kind.counts) for kind in kinds] == [
        ("0-65535", ((0, 8),)), ("65536-131071", ((1, 8),)),
    ]  # fmt: skip
    assert sum(len(kind.nodes) for kind in kinds) == world // 8


def timeline(*events: HostEvent) -> RankTimeline:
    return replay_host(events, base=(), loader=DataLoader(), rules=PinnedRules())


def block(size: int, **more: object) -> HostBlock:
    return HostBlock(bytes=size, category=HostCategory.CHECKPOINT, **more)  # type: ignore[arg-type]


def test_a_node_whose_ranks_differ_is_the_sum_of_its_real_ranks_phase_by_phase() -> None:
    load, step = Mark(Phase.LOAD), Mark(Phase.OPTIMIZER_STEP, 1)
    large = timeline(load, HostAlloc(1, block(100)), HostFree(1), step, HostAlloc(2, block(10)))
    small = timeline(load, HostAlloc(1, block(7)), step, HostAlloc(2, block(50)))
    ranks = [
        RankOnHost(0, RankSet(((0, 0),)), large, (1, 2)),
        RankOnHost(1, RankSet(((1, 3),)), small, (1, 2)),
    ]

    mixed, alike = sum_nodes(ranks, 2)

    assert mixed == NodeStatement(
        nodes="0",
        ranks="0-1",
        # 100 and 7 at once, or 10 and 57; if each is at its highest point: 100 and 57, and 2 more each.
        peak=HostPeak(phase=Phase.LOAD, iteration=0, bytes=107, interval_bytes=(105, 161)),
        parts={HostCategory.CHECKPOINT: 107},
        file_bytes=0,
        local_ranks=(
            RankHost(representative=0, count=1, resident_bytes=100, worker_bytes=0),
            RankHost(representative=1, count=1, resident_bytes=57, worker_bytes=0),
        ),
        phases=(
            HostPhaseStatement(phase=Phase.LOAD, iteration=0, bytes=107),
            HostPhaseStatement(phase=Phase.OPTIMIZER_STEP, iteration=1, bytes=67),
        ),
    )
    assert (alike.nodes, alike.ranks, alike.peak.bytes) == ("1", "2-3", 114)


def test_what_ranks_share_is_there_once_on_a_node_and_resident_in_each() -> None:
    events = (
        Mark(Phase.LOAD),
        HostAlloc(1, block(1000, backing=Backing.FILE, name="weights")),
        HostAlloc(2, block(200, backing=Backing.NODE, name="tokens")),
        HostAlloc(3, block(5)),
    )

    (node,) = sum_nodes([RankOnHost(0, RankSet(((0, 7),)), timeline(*events), (0, 0))], 8)

    assert (node.peak.bytes, node.file_bytes) == (200 + 8 * 5, 1000)
    assert node.parts == {HostCategory.CHECKPOINT: 40, HostCategory.SHARED: 200}
    assert node.local_ranks == (RankHost(representative=0, count=8, resident_bytes=1205, worker_bytes=0),)


def test_a_node_is_judged_by_its_peak_then_by_what_it_may_take() -> None:
    (node,) = sum_nodes(
        [RankOnHost(0, RankSet(((0, 0),)), timeline(Mark(Phase.LOAD), HostAlloc(1, block(100))), (0, 9))], 1
    )

    assert [node.verdict(capacity) for capacity in (99, 100, 108, 109)] == ["exceeds", "tight", "tight", "fits"]
