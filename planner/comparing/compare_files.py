"""What `planner compare` does once it has a plan: the file beside it is told apart, read, and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.allocator.snapshot import read_snapshot
from planner.comparing import plan_comparison, program_comparison
from planner.comparing.comparison import Comparison, to_json
from planner.comparing.comparison_text import render
from planner.comparing.plan_comparison import Predicted
from planner.errors import PlannerError, SpecError
from planner.events import Event
from planner.job.json_text import read_json
from planner.job.text_files import file_text
from planner.measuring import store
from planner.measuring.measured_program import MeasuredProgram, from_json, is_measured_program
from planner.report.program_statement import ProgramStatement

_SNAPSHOTS = (".pickle", ".pkl", ".gz", ".xz")


def no_events(_: int) -> Sequence[Event]:
    """What a finished plan knows of the events of a rank."""
    return ()


def run_compare(
    plan: Predicted,
    measured: Path,
    *,
    case: str = "",
    rank: int | None = None,
    events_of: Callable[[int], Sequence[Event]] = no_events,
) -> list[Comparison]:
    """The plan beside a snapshot, a measured program, or every measurement of a file that is of `case` and `rank`
    (default: all). A run of a program stands beside the first two only.

    `events_of` gives the predicted events of a measured rank. Raises PlannerError for a file that is neither, or
    without such a measurement.
    """
    if measured.name.endswith(_SNAPSHOTS):
        return [plan_comparison.with_snapshot(plan, read_snapshot(measured), measured.name, rank=rank or 0)]
    program = _measured_program(measured)
    if program is not None:
        return program_comparison.with_program(plan, program, rank=rank)
    if isinstance(plan, ProgramStatement):
        raise PlannerError(
            f"{measured} is no measured program, beside which a run of a program could stand",
            allowed="a file that planner measure -- COMMAND wrote, or a snapshot",
        )
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
    if _measured_program(measured) is not None:
        return ""
    kinds = {each.device.kind for each in store.read(measured) if not each.error}
    return "cpu" if kinds == {"cpu"} else ""


def _measured_program(measured: Path) -> MeasuredProgram | None:
    """None for any other file, which its own reader tells from what is broken."""
    try:
        document = read_json(file_text(measured, str(measured)), str(measured))
    except SpecError:
        return None
    if not isinstance(document, dict) or not is_measured_program(document):
        return None
    return from_json(document)


def format_comparisons(comparisons: Sequence[Comparison], *, as_json: bool) -> str:
    """The comparisons as they are printed; as JSON one object: the comparison, or all of them."""
    if not as_json:
        return "\n".join(render(each) for each in comparisons)
    documents = [to_json(each) for each in comparisons]
    whole = documents[0] if len(documents) == 1 else {"schema": "planner.comparisons/1", "comparisons": documents}
    return json.dumps(whole, indent=2) + "\n"
