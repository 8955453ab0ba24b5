"""Judges jobs by the share of their kind that may take more than it is said (`--risk 1%`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from planner.errors import PlannerError
from planner.report.statement import RankClassStatement, Statement
from planner.truth.calibration.recorded_errors import reserved_band, reserved_bound
from planner.verdict import Verdict, decide

Judged = TypeVar("Judged", bound=Statement)
LEAST_RISK, MOST_RISK = 0.001, 0.5


def parse_risk(text: str, place: str, error: type[PlannerError] = PlannerError) -> float:
    """The share that `1%` or `0.01` says. Raises `error` for anything else."""
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = float("nan")
    if not LEAST_RISK <= share <= MOST_RISK:
        raise error(
            f"{text[:40]!r} is no risk",
            allowed=f"a share of jobs from {LEAST_RISK:.1%} to {MOST_RISK:.0%}, as 1% or 0.01",
            place=place,
        )
    return share


def judge_at_risk(statement: Judged, risk: float) -> Judged:
    """The statement with intervals whose upper end this share of jobs of a kind exceeds, and the verdicts of those."""
    return replace(statement, rank_classes=tuple(_judge(each, risk) for each in statement.rank_classes))


def _judge(rank_class: RankClassStatement, risk: float) -> RankClassStatement:
    peak, capacity = rank_class.peak, rank_class.capacity_bytes
    low, high = peak.interval_bytes
    more = reserved_bound(rank_class.kind, risk) - reserved_band(rank_class.kind)[1]
    highest = high + round(peak.reserved_bytes * more)
    # Not of a verdict that is the allocator's cache's, or that of sizes which nobody has seen.
    is_of_interval = not (rank_class.verdict is Verdict.EXCEEDS or rank_class.cache_releases)
    if is_of_interval and not rank_class.judged_iterations and peak.device_bytes <= capacity:
        rank_class = replace(rank_class, verdict=decide(runs_out=False, highest_bytes=highest, capacity_bytes=capacity))
    peak = replace(peak, interval_bytes=(low, max(highest, peak.device_bytes)))
    return replace(rank_class, peak=peak, risk=risk)
