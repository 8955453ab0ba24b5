"""How far plans were from what was recorded, run by run, what that says of a plan of the same kind, and how a plan is
judged if another share of its kind may take more (`--risk 1%`)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from planner.errors import PlannerError
from planner.job.kinds import Kind
from planner.records import from_plain
from planner.report.statement import Plan, RankClassStatement
from planner.verdict import Verdict, decide

OUTSIDE_INTERVAL = 0.05
"""Of the runs of a kind, those that lie outside of its interval."""
ENOUGH_RUNS = 39
"""From so many on a kind needs no other: of them and a further one both ends are 5 %."""
STRETCH = 0.25
"""The exponent by which few runs reach further than their own range: as a normal distribution from 20 runs to 40. What
is wider than that the next wider kind has to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedError:
    """One figure of one run: recorded / planned - 1, 0 within what was printed."""

    source: str
    """Whose run it is: runs of one source are off alike."""
    family: str
    run: str
    kind: Kind
    figure: str
    """Which peak: `reserved`, or `allocated` where nothing else was recorded."""
    error: float


def band(rows: Sequence[RecordedError], kind: Kind) -> tuple[float, float]:
    """The shortest range in which a further run of a kind lies with 95 % probability: of its runs and that one at most
    5 % lie outside of it or at its ends. Of too few runs for that their range is stretched, and the band of the next
    wider kind holds for the share of runs that is missing. Of no rows (0, 0)."""
    return _band(rows, kind.path)


def _band(rows: Sequence[RecordedError], path: tuple[str, ...]) -> tuple[float, float]:
    errors = _errors(rows, path)
    most = int(OUTSIDE_INTERVAL * (len(errors) + 1) + _ROUNDING)
    if most >= 2:  # its two ends
        spans = [(errors[first], errors[first - most + 1]) for first in range(most - 1)]
        return min(spans, key=lambda span: span[1] - span[0])
    wider = _band(rows, path[:-1]) if len(path) > 1 else (0.0, 0.0)
    low, high = (
        _stretch_end(errors, OUTSIDE_INTERVAL / 2, end, side) for end, side in zip(wider, (-1, 1), strict=True)
    )
    return low, high


def bound(rows: Sequence[RecordedError], kind: Kind, risk: float) -> float:
    """The error that a further run of a kind exceeds with at most this probability; of few runs as `band`."""
    return _bound(rows, kind.path, risk)


def _bound(rows: Sequence[RecordedError], path: tuple[str, ...], risk: float) -> float:
    errors = _errors(rows, path)
    if most := int(risk * (len(errors) + 1) + _ROUNDING):
        return errors[-most]
    return _stretch_end(errors, risk, _bound(rows, path[:-1], risk) if len(path) > 1 else 0.0, 1)


def _errors(rows: Sequence[RecordedError], path: tuple[str, ...]) -> list[float]:
    """From the lowest on: runs of a kind and of those within it, but for those with a trait that it does not have."""
    return sorted(
        row.error
        for row in rows
        if row.kind.path[: len(path)] == path and (row.kind.path == path or not row.kind.traits)
    )


def _stretch_end(errors: Sequence[float], tail: float, wider: float, side: int) -> float:
    """Where errors end on one side (-1, 1), of which there are too few to see that a share `tail` lies beyond."""
    lent = (1 - len(errors) / (1 / tail - 1)) * wider
    if not errors:
        return lent
    share = (len(errors) + 1) * tail
    middle = float(statistics.median(errors))
    end = middle + side * max(side * (error - middle) for error in errors) / math.pow(share, STRETCH)
    return side * max(side * end, side * lent)


_ROUNDING = 1e-9


@lru_cache(maxsize=1)
def recorded_errors() -> tuple[RecordedError, ...]:
    """Every run that was recorded and planned (docs/results/intervals.md, from which this package's file is)."""
    text = resources.files(__package__).joinpath("recorded_errors.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return tuple(from_plain(RecordedError, row, f"recorded_errors.json, row {at}") for at, row in enumerate(rows, 1))


@lru_cache(maxsize=256)
def reserved_band(kind: Kind) -> tuple[float, float]:
    """The interval of a kind, relative to planned, over all runs that were recorded."""
    return band(recorded_errors(), kind)


@lru_cache(maxsize=256)
def reserved_bound(kind: Kind, risk: float) -> float:
    """What a run of a kind exceeds with this probability, relative to planned, over all runs that were recorded."""
    return bound(recorded_errors(), kind, risk)


def count_runs(kind: Kind) -> int:
    """How many runs of exactly this kind were recorded."""
    return sum(row.kind.path == kind.path for row in recorded_errors())


def is_covered(row: RecordedError, rows: Sequence[RecordedError], *, by_family: bool = False) -> bool:
    """Whether a run lies in the interval of its kind that the runs of other sources, or of other families, say."""
    others = [other for other in rows if (other.family != row.family if by_family else other.source != row.source)]
    low, high = band(others, row.kind)
    return low - _ROUNDING <= row.error <= high + _ROUNDING


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
            f"{text[:40]!r} is not a risk",
            allowed=f"a share of jobs from {LEAST_RISK:.1%} to {MOST_RISK:.0%}, as 1% or 0.01",
            place=place,
        )
    return share


def judge_at_risk(plan: Plan, risk: float) -> Plan:
    """The plan with intervals whose upper end this share of jobs of a kind exceeds, and the verdicts of those."""
    return replace(plan, rank_classes=tuple(_judge(each, risk) for each in plan.rank_classes))


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
