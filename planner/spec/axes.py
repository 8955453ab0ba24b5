"""The axes of parallelism and their degrees."""

from __future__ import annotations

from planner.spec.job import Parallel


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
