"""What `planner compare` does once it has a plan: the file beside it is told apart, read, and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.allocator.snapshot import read_snapshot
from planner.comparing import plan_comparison
from planner.comparing.comparison import Comparison, to_json
from planner.comparing.comparison_text import render
from planner.errors import PlannerError
from planner.events import Event
from planner.measuring import store
from planner.report.statement import Plan

_SNAPSHOTS = (".pickle", ".pkl", ".gz", ".xz")


def no_events(_: int) -> Sequence[Event]:
    """What a finished plan knows of the events of a rank."""
    return ()


def run_compare(
    plan: Plan,
    measured: Path,
    *,
    case: str = "",
    rank: int | None = None,
    events_of: Callable[[int], Sequence[Event]] = no_events,
) -> list[Comparison]:
    """The plan beside a snapshot, or beside every measurement of a file that is of `case` and `rank` (default: all).

    `events_of` gives the predicted events of a measured rank. Raises PlannerError for a file that is neither, or
    without such a measurement.
    """
    if measured.name.endswith(_SNAPSHOTS):
        return [plan_comparison.with_snapshot(plan, read_snapshot(measured), measured.name, rank=rank or 0)]
    found = [
        each
        for each in store.read(measured)
        if (not case or each.case == case) and (rank is None or each.rank == rank) and not each.error and each.job
    ]
    if not found:
        wanted = f"no measurement of {case!r}" if case else "no measurement of a step"
        raise PlannerError(f"{measured} has {wanted}", allowed="a file that planner measure wrote, or a snapshot")
    return [plan_comparison.with_measurement(plan, each, events=events_of(each.rank)) for each in found]


def target_of(measured: Path) -> str:
    """Whose kernels a job has to be traced with to stand beside this file: `cpu`, or empty for the job's own GPU."""
    if measured.name.endswith(_SNAPSHOTS):
        return ""
    kinds = {each.device.kind for each in store.read(measured) if not each.error}
    return "cpu" if kinds == {"cpu"} else ""


def format_comparisons(comparisons: Sequence[Comparison], *, as_json: bool) -> str:
    """The comparisons as they are printed; as JSON one object: the comparison, or all of them."""
    if not as_json:
        return "\n".join(render(each) for each in comparisons)
    documents = [to_json(each) for each in comparisons]
    whole = documents[0] if len(documents) == 1 else {"schema": "planner.comparisons/1", "comparisons": documents}
    return json.dumps(whole, indent=2) + "\n"
