"""Adds up what a rank holds on its device and on its host, phase by phase, where the two share one memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.allocator.host.statement import HostStatement, NodeStatement
from planner.events import Phase
from planner.hardware import catalog
from planner.hardware.gpu_records import MemoryPool
from planner.job.rank_sets import RankSet
from planner.report.statement import PoolStatement, RankClassStatement
from planner.verdict import decide, worst


def state_pool(
    gpu: str, rank_classes: Sequence[RankClassStatement], host: HostStatement, ranks_per_node: int
) -> PoolStatement | None:
    """The statement on the fullest ranks; None for a GPU that has memory of its own, or whose name says nothing.

    A rank's share of the host is an equal part of what its node holds at least in that phase.
    """
    known = catalog.by_name(gpu)
    if known is None or known.pool is None:
        return None
    stated = [_state(known.pool, ranks, _node_of(ranks, host), ranks_per_node) for ranks in rank_classes]
    return max(stated, key=lambda one: (one.verdict is worst(other.verdict for other in stated), one.taken_bytes))


def _node_of(ranks: RankClassStatement, host: HostStatement) -> NodeStatement:
    here = [node for node in host.nodes if ranks.representative in RankSet.parse(node.ranks)]
    return max(here or host.nodes, key=lambda node: node.peak.bytes)


def _state(pool: MemoryPool, ranks: RankClassStatement, node: NodeStatement, ranks_per_node: int) -> PoolStatement:
    runs_out, rows = False, []
    for phase, iteration, least, most in _on_device(ranks):
        on_host = -(-node.bytes_in(phase, iteration) // ranks_per_node)
        # What is cached beyond the tensors is given back when cudaMalloc fails.
        runs_out = runs_out or least + on_host + pool.system_bytes > pool.total_bytes
        rows.append((most + on_host, least, most, on_host, phase, iteration))
    _, least, most, on_host, phase, iteration = max(rows, key=lambda row: row[0])
    highest = most + on_host + max(ranks.peak.interval_bytes[1] - ranks.peak.device_bytes, 0)
    return PoolStatement(
        ranks=ranks.ranks,
        phase=phase,
        iteration=iteration,
        device_bytes=most,
        host_bytes=on_host,
        highest_bytes=highest,
        system_bytes=pool.system_bytes,
        floor_bytes=pool.floor_bytes,
        capacity_bytes=pool.total_bytes,
        verdict=decide(
            runs_out=runs_out,
            highest_bytes=highest + pool.system_bytes + pool.floor_bytes,
            capacity_bytes=pool.total_bytes,
        ),
        source=pool.source,
    )


def _on_device(ranks: RankClassStatement) -> Iterator[tuple[Phase, int, int, int]]:
    """Each phase with the least and the most that its ranks take of the device."""
    outside = ranks.outside_allocator.total_bytes
    for stated in ranks.phases:
        yield (
            stated.phase,
            stated.iteration,
            stated.peak_allocated_bytes + outside,
            stated.peak_reserved_bytes + outside,
        )
