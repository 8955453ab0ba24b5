"""Computes the lower bound of a job given as a bundle, without asking a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.bound.lower_bound import Bound, lower_bound
from planner.errors import PlannerError
from planner.job.loading import load_bundle


def bound_of(bundle: Mapping[str, Any]) -> Bound | None:
    """None for a bundle that cannot be read: whoever plans says what is wrong with it."""
    try:
        return lower_bound(load_bundle(bundle))
    except PlannerError:
        return None
