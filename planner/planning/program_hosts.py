"""What the nodes of a program hold on the host, by the ranks that were run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.host.state_program_hosts import ProgramHost, state_program_hosts
from planner.host.statement import HostStatement
from planner.planning.program_ranks import rank_set, speakers
from planner.running.launch_line import LaunchLine
from planner.running.order import RankRun


def state_hosts_of(runs: Sequence[RankRun], line: LaunchLine, capacity_bytes: int) -> HostStatement:
    """The statement about the nodes; `capacity_bytes` is what the program may use of each, 0 where nobody has said."""
    spoken = [(run, rank_set(ranks)) for run, ranks in speakers(runs, line.world_size)]
    found = state_program_hosts(
        [
            ProgramHost(
                representative=run.rank,
                ranks=ranks,
                events=run.trace.host,
                transformers="transformers" in run.libraries,
                assumed=run.trace.host_assumed,
            )
            for run, ranks in spoken
        ],
        ranks_per_node=line.processes_per_node,
        capacity_bytes=capacity_bytes,
        conf=runs[0].allocator_conf,
    )
    untried = [
        f"Of ranks {ranks} rank {run.rank} was run, and the others are taken to hold on the host what it does: what"
        " only some rank does there (the first of a node, say) is not seen."
        for run, ranks in spoken
        if len(ranks) > 1
    ]
    return replace(found, assumptions=(*found.assumptions, *untried))
