"""The axes of parallelism and their degrees."""

from __future__ import annotations

from planner.job.schema import Parallel

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
"""In the order of the job spec."""
DISTINCT_AXES = ("pp", "cp")
"""Axes along which no two ranks do the same: each stage of a pipeline is its own, and each place in the ring of
attention takes another part of the queries and keys (torch 2.13, _context_parallel/_attention.py)."""


def axis_degrees(parallel: Parallel) -> dict[str, int]:
    """The degree of every axis, in the order of the job spec."""
    return {name: getattr(parallel, name).degree for name in AXES}
