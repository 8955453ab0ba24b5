"""What searches found, as the JSON objects of the commands and the service."""

from __future__ import annotations

from typing import Any

from planner.searching.engine import Row, SearchResult
from planner.searching.exact import Exact
from planner.searching.extremes import Largest
from planner.searching.fewest import Fewest
from planner.searching.objectives import Objective
from planner.searching.roofline import ASSUMPTIONS
from planner.searching.sweeping import Sweep

SEARCH, MAX, MIN, SWEEP = "planner.search/1", "planner.max/1", "planner.min/1", "planner.sweep/1"


def search_to_json(result: SearchResult) -> dict[str, Any]:
    """The candidates that fit, the best first, and what was done to find them."""
    scales, best = result.scales, best_cost(result)
    return {
        "schema": SEARCH,
        "objective": result.objective.value,
        "complete": result.complete,
        "stopped": result.stopped,
        "candidates": [row_to_json(row, best) for row in result.rows],
        "closest": None if result.closest is None else row_to_json(result.closest, best),
        "space": {
            "candidates": scales.size,
            "looked_at": scales.looked_at,
            "broken_rules": dict(scales.ruled_out),
            "exceed_by_bound": scales.beyond_bound,
            "left_out_as_larger": result.left_out,
            "planned": result.planned,
            "traced": result.traced,
            "refused": result.refused,
            "undecided": result.undecided,
        },
        "global_batch": result.space.global_batch,
        "assumptions": list(ASSUMPTIONS) if result.objective is Objective.COST else [],
        "seconds": {"first": _rounded(result.first_seconds), "total": _rounded(result.seconds)},
    }


def best_cost(result: SearchResult) -> float:
    """The least cost of those shown; 0 where none is known."""
    return min((row.cost.per_token for row in result.rows if row.cost is not None), default=0.0)


def row_to_json(row: Row, best: float) -> dict[str, Any]:
    """One candidate. `relative_cost`: GPU time of a token over that of the cheapest shown."""
    cost = row.cost
    parts = {} if cost is None else {
        name: round(getattr(cost, name) / cost.step, 3)
        for name in ("compute", "memory", "blocking", "exposed", "bubble", "optimizer")
    }  # fmt: skip
    return {
        "change": row.candidate.change,
        **exact_to_json(row.exact),
        "relative_cost": round(cost.per_token / best, 4) if cost is not None and best else None,
        "shares_of_cost": parts,
    }


def exact_to_json(exact: Exact) -> dict[str, Any]:
    """What a plan said."""
    return {
        "verdict": exact.verdict.value,
        "device_bytes": exact.device_bytes,
        "headroom_bytes": exact.headroom_bytes,
        "capacity_bytes": exact.capacity_bytes,
    }


def largest_to_json(found: Largest) -> dict[str, Any]:
    """The answer of `planner max`: every size that was planned is in it."""
    return {
        "schema": MAX,
        "axis": found.name,
        "value": found.value,
        "step": found.step,
        "stopped": found.stopped,
        "plan": None if found.exact is None else exact_to_json(found.exact),
        "planned": [{"value": size, **exact_to_json(exact)} for size, exact in sorted(found.planned.items())],
    }


def fewest_to_json(found: Fewest) -> dict[str, Any]:
    """The answer of `planner min`."""
    return {
        "schema": MIN,
        "axis": "gpus",
        "value": found.gpus,
        "stopped": found.stopped,
        "candidate": None if found.row is None else row_to_json(found.row, 0.0),
        "closest": None if found.closest is None else row_to_json(found.closest, 0.0),
        "not_enough": [{"gpus": gpus, "why": why} for gpus, why in found.tried.items()],
    }


def sweep_to_json(found: Sweep) -> dict[str, Any]:
    """Every point of a grid; `device_bytes` of what the bound excludes is null, and `least_bytes` is its bound."""
    return {
        "schema": SWEEP,
        "axes": [{"name": axis.name, "values": list(axis.labels)} for axis in found.space.axes],
        "stopped": found.stopped,
        "points": [
            {
                "at": dict(zip((axis.name for axis in found.space.axes), point.labels, strict=True)),
                "verdict": point.verdict,
                "device_bytes": None if point.exact is None else point.exact.device_bytes,
                "headroom_bytes": None if point.exact is None else point.exact.headroom_bytes,
                "least_bytes": point.least_bytes or None,
                "refused": point.refused,
            }
            for point in found.points
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
