"""The axes of parallelism and their degrees."""

from __future__ import annotations

from planner.job.schema import Parallel

DISTINCT_AXES = ("pp", "cp")
"""Axes along which no two ranks do the same: each stage of a pipeline is its own, and each place in the ring of
attention takes another part of the queries and keys (torch 2.13, _context_parallel/_attention.py)."""


def axis_degrees(parallel: Parallel) -> dict[str, int]:
    """The degree of every axis, in the order of the job spec."""
    return {
        "dp_replicate": parallel.dp_replicate.degree,
        "dp_shard": parallel.dp_shard.degree,
        "tp": parallel.tp.degree,
        "pp": parallel.pp.degree,
        "cp": parallel.cp.degree,
        "ep": parallel.ep.degree,
    }
