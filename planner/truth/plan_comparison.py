"""Compares a plan, or a run of a program, with a measurement or a snapshot: `planner compare`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner.allocator.snapshot import Snapshot, read_snapshot
from planner.allocator.verify import verify
from planner.errors import PlannerError, SpecError
from planner.events import Category, Event, Phase
from planner.job.json_text import file_text, read_json
from planner.job.named_gpus import look_up
from planner.job.rank_sets import RankSet
from planner.report import program_statement, statement
from planner.report.program_statement import ProgramStatement
from planner.report.statement import Plan, RankClassStatement
from planner.truth.comparison import Comparison, Figure, PhaseComparison, compare_sizes, render, to_json
from planner.truth.measuring import measurement_lines
from planner.truth.measuring.measured_phases import most_by_category, phases_of
from planner.truth.measuring.measurement_lines import Levels, MeasuredPhase, Measurement
from planner.truth.measuring.program import MeasuredProgram, MeasuredRank, from_json, is_measured_program

Predicted = Plan | ProgramStatement
"""What has rank classes, and the versions with which they were made."""

_EXACT = (Category.PARAMETER, Category.GRADIENT, Category.BUCKET, Category.OPTIMIZER_STATE)


def with_measurement(
    plan: Plan, measurement: Measurement, *, events: Sequence[Event] = (), measured_events: Sequence[Event] = ()
) -> Comparison:
    """The rank class of the measured rank, beside the measurement.

    `events` are what was predicted for that class: with them categories are compared, and requested bytes, which is
    all that a CPU has; with `measured_events` allocations too. Raises PlannerError if no class has that rank.
    """
    statement = class_of(plan, measurement.rank)
    on_cpu = measurement.device.kind == "cpu"
    if on_cpu and not events:
        raise PlannerError(
            "this was measured on a CPU, which has requested bytes only",
            remedy="compare with the job itself, traced for a CPU, not with a finished plan",
        )
    predicted = phases_of(events)
    peak = _compare_requested(predicted, measurement.phases) if on_cpu else _whole(statement, measurement)
    phases = tuple(_phases_of_events(predicted, measurement) if on_cpu else _phases(statement, measurement))
    categories = _categories(events, measurement) if events else ()
    allocations, sizes = compare_sizes(events, measured_events) if measured_events else (None, ())
    return Comparison(
        case=measurement.case,
        device=measurement.device.name,
        peak=peak,
        phases=phases,
        categories=categories,
        allocations=allocations,
        sizes=sizes,
        notes=tuple(_notes(plan, measurement)),
    )


def with_snapshot(plan: Predicted, snapshot: Snapshot, name: str, *, rank: int = 0) -> Comparison:
    """The rank class of `rank` beside a recorded history: the peaks of the whole, of the device that held the most.

    Raises SnapshotError for a history that cannot be replayed, PlannerError if it is empty.
    """
    devices = verify(snapshot).devices
    if not devices:
        raise PlannerError(f"{name} has no history", remedy="record it with torch.cuda.memory._record_memory_history")
    recorded = max(devices, key=lambda each: each.peak_allocated_bytes)
    peak = class_of(plan, rank).peak
    figures = (
        Figure(name="allocated", predicted=peak.allocated_bytes, measured=recorded.peak_allocated_bytes),
        Figure(name="reserved", predicted=peak.reserved_bytes, measured=recorded.peak_reserved_bytes),
    )
    return Comparison(case=name, device=f"cuda:{recorded.device}", peak=figures)


def class_of(plan: Predicted, rank: int) -> RankClassStatement:
    """The class of a rank. Raises PlannerError if there is none."""
    for each in plan.rank_classes:
        if rank in RankSet.parse(each.ranks):
            return each
    raise PlannerError(f"the plan has no rank {rank}", allowed=", ".join(each.ranks for each in plan.rank_classes))


def _whole(statement: RankClassStatement, measurement: Measurement) -> tuple[Figure, ...]:
    peak, measured = statement.peak, measurement.peak
    figures = [
        Figure(name="allocated", predicted=peak.allocated_bytes, measured=measured.allocated_bytes),
        Figure(name="reserved", predicted=peak.reserved_bytes, measured=measured.reserved_bytes),
    ]
    device_bytes = max((each.device_bytes for each in measurement.phases), default=0)
    if device_bytes:
        figures.append(Figure(name="device", predicted=peak.device_bytes, measured=device_bytes))
    if device_bytes and measurement.device_bytes_by == "process":
        held = device_bytes - measured.reserved_bytes
        figures.append(Figure(name="outside", predicted=_outside(statement, measurement), measured=held))
    return tuple(figures)


def _outside(statement: RankClassStatement, measurement: Measurement) -> int:
    """With the images of the kernels that the step has loaded; absent peers have no NCCL."""
    outside = statement.outside_allocator
    return outside.total_bytes if measurement.peers == "present" else outside.cuda_context_bytes


def _phases(statement: RankClassStatement, measurement: Measurement) -> Iterator[PhaseComparison]:
    measured = {(each.phase, each.iteration): each for each in measurement.phases}
    for each in statement.phases:
        there = measured.get((each.phase, each.iteration))
        if there is None:
            continue
        yield PhaseComparison(
            phase=each.phase,
            iteration=each.iteration,
            figures=(
                Figure(name="allocated", predicted=each.peak_allocated_bytes, measured=there.peak.allocated_bytes),
                Figure(name="reserved", predicted=each.peak_reserved_bytes, measured=there.peak.reserved_bytes),
                Figure(name="allocated_at_end", predicted=each.end_allocated_bytes, measured=there.end.allocated_bytes),
            ),
        )


def _phases_of_events(predicted: Sequence[MeasuredPhase], measurement: Measurement) -> Iterator[PhaseComparison]:
    measured: dict[tuple[Phase, int], MeasuredPhase] = {(e.phase, e.iteration): e for e in measurement.phases}
    for each in predicted:
        there = measured.get((each.phase, each.iteration))
        if there is not None:
            figures = (
                _figure_of("requested", each.peak, there.peak),
                _figure_of("requested_at_end", each.end, there.end),
            )
            yield PhaseComparison(phase=each.phase, iteration=each.iteration, figures=figures)


def _compare_requested(predicted: Sequence[MeasuredPhase], measured: Sequence[MeasuredPhase]) -> tuple[Figure, ...]:
    highest, other = Levels(), Levels()
    for each in predicted:
        highest = highest.highest(each.peak)
    for each in measured:
        other = other.highest(each.peak)
    return (_figure_of("requested", highest, other),)


def _figure_of(name: str, predicted: Levels, measured: Levels) -> Figure:
    return Figure(name=name, predicted=predicted.requested_bytes, measured=measured.requested_bytes)


def _categories(events: Sequence[Event], measurement: Measurement) -> tuple[Figure, ...]:
    predicted = most_by_category(events)
    return tuple(
        Figure(name=each.value, predicted=predicted.get(each.value, 0), measured=measurement.categories[each.value])
        for each in _EXACT
        if each.value in measurement.categories
    )


def _notes(plan: Plan, measurement: Measurement) -> Iterator[str]:
    yield from differing_torch(plan, measurement.software.get("torch", ""))
    if measurement.truth is not None and not measurement.truth.believed:
        yield "the measurement cannot be believed: its runs disagree, or the profiler missed something"
    if measurement.out_of_memory is not None:
        out = measurement.out_of_memory
        yield f"the measured step ran out of memory in {out.phase} of iteration {out.iteration}"
    if measurement.peers == "absent":
        yield "measured with absent peers: NCCL's own memory is not in it"


def differing_torch(plan: Predicted, ran: str) -> Iterator[str]:
    """A note if the measurement ran with another minor version of torch."""
    planned = plan.provenance.torch
    if planned.split("+")[0].rsplit(".", 1)[0] != ran.split("+")[0].rsplit(".", 1)[0]:
        yield f"predicted with torch {planned}, measured with torch {ran}"


def with_program(predicted: Predicted, measured: MeasuredProgram, *, rank: int | None = None) -> list[Comparison]:
    """One for each rank of the measured program, or of this rank; one that left no figures has a note of why.

    Raises PlannerError if no rank has figures, there is no such rank, or nothing was predicted for one.
    """
    ranks = [each for each in measured.ranks if rank is None or each.rank == rank]
    missing = [each for each in measured.without_figures if rank is None or each.rank == rank]
    if not ranks:
        said = "; ".join(f"rank {each.rank}: {each.reason}" for each in missing) or f"there is no rank {rank}"
        raise PlannerError(
            f"the measured program has no figures ({said})",
            allowed="what planner measure -- COMMAND wrote of a program that used a GPU",
            remedy="measure it again where it comes to its end" if missing else "--rank of those that were measured",
        )
    found = {each.rank: _beside(predicted, measured, each) for each in ranks}
    for each in missing:
        note = f"no figures: {each.reason}"
        found[each.rank] = Comparison(case=f"rank {each.rank}", device="", peak=(), notes=(note,))
    return [found[number] for number in sorted(found)]


def _beside(predicted: Predicted, measured: MeasuredProgram, rank: MeasuredRank) -> Comparison:
    statement = class_of(predicted, rank.rank)
    return Comparison(
        case=f"rank {rank.rank}",
        device=rank.gpu,
        peak=tuple(_figures(statement, rank)),
        notes=tuple(_program_notes(predicted, measured, rank)),
    )


def _figures(statement: RankClassStatement, rank: MeasuredRank) -> Iterator[Figure]:
    """Device bytes are the highest reserved and what was outside at the end: the driver keeps no peak of a process."""
    peak = statement.peak
    yield Figure(name="allocated", predicted=peak.allocated_bytes, measured=rank.peak.allocated_bytes)
    yield Figure(name="reserved", predicted=peak.reserved_bytes, measured=rank.peak.reserved_bytes)
    if not rank.outside_bytes:
        return
    device_bytes = rank.peak.reserved_bytes + rank.outside_bytes
    yield Figure(name="device", predicted=peak.device_bytes, measured=device_bytes)
    yield Figure(name="outside", predicted=statement.outside_allocator.total_bytes, measured=rank.outside_bytes)


def _program_notes(predicted: Predicted, measured: MeasuredProgram, rank: MeasuredRank) -> Iterator[str]:
    yield from differing_torch(predicted, rank.software.get("torch", ""))
    if isinstance(predicted, ProgramStatement) and not _is_called(rank.gpu, predicted.gpu):
        yield f"predicted for {predicted.gpu}, measured on {rank.gpu}"
    if measured.exit_code:
        yield f"the measured command ended with {measured.exit_code}: it may have ended before its peak"
    if rank.ended_by:
        yield f"the measured process was ended by {rank.ended_by}"
    if rank.processes > 1:
        yield f"{rank.processes} processes of this rank took memory: the figures are those of the largest"
    if rank.devices > 1:
        yield f"it took memory of {rank.devices} devices: the figures are those of the fullest"
    if rank.cache_releases:
        yield f"its cache was released {rank.cache_releases} times to make room, which lowers reserved bytes"
    if not rank.outside_bytes:
        yield "the driver did not say what the process held, so device bytes are not compared"


def _is_called(product: str, name: str) -> bool:
    """Whether the driver's name of a GPU is that of the catalog's."""
    try:
        return look_up(product).name == name
    except SpecError:
        return False


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
        return [with_snapshot(plan, read_snapshot(measured), measured.name, rank=rank or 0)]
    program = _measured_program(measured)
    if program is not None:
        return with_program(plan, program, rank=rank)
    if isinstance(plan, ProgramStatement):
        raise PlannerError(
            f"{measured} is no measured program, beside which a run of a program could stand",
            allowed="a file that planner measure -- COMMAND wrote, or a snapshot",
        )
    found = [
        each
        for each in measurement_lines.read(measured)
        if (not case or each.case == case) and (rank is None or each.rank == rank) and not each.error and each.job
    ]
    if not found:
        wanted = f"no measurement of {case!r}" if case else "no measurement of a step"
        raise PlannerError(f"{measured} has {wanted}", allowed="a file that planner measure wrote, or a snapshot")
    return [with_measurement(plan, each, events=events_of(each.rank)) for each in found]


def target_of(measured: Path) -> str:
    """Whose kernels a job has to be traced with to stand beside this file: `cpu`, or empty for the job's own GPU."""
    if measured.name.endswith(_SNAPSHOTS):
        return ""
    if _measured_program(measured) is not None:
        return ""
    kinds = {each.device.kind for each in measurement_lines.read(measured) if not each.error}
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


def read_stored_plan(path: Path) -> Predicted | None:
    """What `planner plan` or `planner run --format json` wrote; None for any other file, which its own reader judges.

    Raises PlannerError for a plan that lacks something.
    """
    try:
        document = read_json(file_text(path, str(path)), str(path))
    except SpecError:
        return None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == statement.SCHEMA:
        return statement.from_json(document)
    if schema == program_statement.SCHEMA:
        return program_statement.from_json(document)
    return None
